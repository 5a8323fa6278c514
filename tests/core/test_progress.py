import io

import pytest

from etude.core.progress import TimeLimit, clock_time, short, track


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def work(stream: io.StringIO, seconds: int, total: float | None = 100, done: float = 0, fail: bool = False) -> str:
    clock = Clock()
    with track("reading", total, "files", done=done, stream=stream, clock=clock) as bar:
        for _ in range(seconds):
            clock.now += 1.0
            bar.advance(2)
            bar.note(loss=2.3456)
        if fail:
            raise ValueError
    return stream.getvalue()


def test_short_work_is_silent():
    clock, stream = Clock(), io.StringIO()
    with track("reading", 10, "files", stream=stream, clock=clock) as bar:
        for _ in range(10):
            clock.now += 0.05
            bar.advance()
    assert stream.getvalue() == ""


def test_plain_lines_come_now_and_then_with_rate_and_time_left():
    lines = work(io.StringIO(), 40).splitlines()
    assert len(lines) == 4  # at 1 s, 16 s and 31 s, and the closing one
    assert lines[1] == "reading   32%  32/100 files  2 files/s  34 s left  loss 2.346"
    assert lines[-1].startswith("reading  80/100 files  2 files/s  stopped after 40 s")


def test_a_terminal_redraws_one_line_in_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = work(Terminal(), 50)
    assert text.count("\n") == 1 and text.endswith("\n")
    assert "\r\x1b[Kreading  ████████████░░░░░░░░░░░░   50%" in text
    assert text.rpartition("\x1b[K")[2].startswith("reading  100/100 files  2 files/s  in 50 s")


def test_a_terminal_line_never_wraps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "30")
    text = work(Terminal(), 10)
    drawn = text.split("\r\x1b[K")[1:-1]  # the closing line may be long: it is not redrawn over
    assert drawn and all(len(line) < 30 for line in drawn)


def test_the_rate_counts_only_our_own_work():
    assert "  2 files/s  5.0 s left" in work(io.StringIO(), 1, total=102, done=90)


def test_more_than_the_total_has_no_time_left_and_never_less_than_none():
    lines = work(io.StringIO(), 40, total=12).splitlines()
    assert any("  0.0 s left" in line for line in lines) and not any(" -" in line for line in lines)


def test_without_a_total_there_is_a_count_and_a_rate():
    lines = work(io.StringIO(), 2, total=None).splitlines()
    assert lines[-1] == "reading  4 files  2 files/s  in 2.0 s  loss 2.346"


def test_the_rate_follows_a_change_of_pace():
    clock, stream = Clock(), io.StringIO()
    with track("training", 1000, "steps", stream=stream, clock=clock) as bar:
        for seconds in [1.0] * 100 + [0.1] * 600:
            clock.now += seconds
            bar.advance()
    assert "10 steps/s" in stream.getvalue().splitlines()[-2]


def test_time_left_heeds_a_limit_of_time():
    clock, stream = Clock(), io.StringIO()
    with track("reinforcement learning", 400, "steps", limit=TimeLimit(390, 240), stream=stream, clock=clock) as bar:
        for _ in range(150):
            clock.now += 1.0
            bar.advance(0.01)  # at this pace 400 steps would take eleven hours
    lines = stream.getvalue().splitlines()
    assert "  62%  " in lines[0] and "2:29 left" in lines[0]
    assert "2:14 left" in lines[1] and "in 2:30" in lines[-1]  # out of time is the end, and not a failure


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_a_narrow_terminal_keeps_reward_and_time_left(monkeypatch: pytest.MonkeyPatch, columns: int):
    monkeypatch.setenv("COLUMNS", str(columns))
    clock, stream = Clock(), Terminal()
    limit = TimeLimit(390)
    with track("reinforcement learning", 400, "steps", limit=limit, stream=stream, clock=clock) as bar:
        for _ in range(10):
            clock.now += 2.0
            bar.advance(1)
            bar.note(reward=0.4123, passed=0.4567, stale=0.789)
    line = stream.getvalue().split("\r\x1b[K")[-2]
    assert len(line) < columns and "6:10 left" in line and "reward 0.412" in line
    assert ("passed 0.457" in line) == (columns >= 80) and ("░" in line) == (columns >= 120)
    assert ("0.5 steps/s" in line) == (columns >= 120)


def test_an_error_closes_the_line_and_goes_on():
    stream = io.StringIO()
    with pytest.raises(ValueError):
        work(stream, 3, fail=True)
    assert "stopped after 3.0 s" in stream.getvalue().splitlines()[-1]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (7, "7"), (9999, "9999"), (12_345, "12.3k"), (4.0e6, "4.0M"), (2.34567, "2.346"), (0.00123, "0.00123")],
)
def test_numbers_are_short(number: float, text: str):
    assert short(number) == text


def test_numbers_that_are_not_finite_are_shown_as_they_are():
    assert short(float("nan")) == "nan" and short(float("inf")) == "inf"


@pytest.mark.parametrize(("seconds", "text"), [(0.44, "0.4 s"), (45, "45 s"), (187, "3:07"), (7510, "2:05:10")])
def test_times_read_like_times(seconds: float, text: str):
    assert clock_time(seconds) == text


def test_the_closing_line_of_a_terminal_never_wraps_and_keeps_whole_notes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "46")
    closing = work(Terminal(), 50).rpartition("\x1b[K")[2].rstrip("\n")
    assert closing == "reading  100/100 files  in 50 s  loss 2.346"
    monkeypatch.setenv("COLUMNS", "40")
    assert work(Terminal(), 50).rpartition("\x1b[K")[2].rstrip("\n") == "reading  100/100 files  in 50 s"

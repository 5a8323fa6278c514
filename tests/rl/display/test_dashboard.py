"""What the dashboard shows, that it fits, and that nothing of it can stop a run."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len

from etude.core.progress import TimeLimit
from etude.rl.display.dashboard import Display, open_display
from etude.rl.display.frame import Head, draw, histogram, spark
from etude.rl.display.snapshot import Snapshot, snapshot
from etude.rl.groups import RolloutGroup, Slot

HEAD = Head("reinforcement learning", 12, 60, 0.2, 67.0, 270.0)
NOW = Snapshot(
    {"running": 5, "grading": 2, "queued": 9, "ready": 16}, 7, 64, {"sandbox": 3, "group": 1}, ((0, 0.4), (10, 0.55))
)


def row(step: int) -> dict[str, float]:
    return {
        "reward": step / 60,
        "reward_tests": step / 50,
        "reward_honest": 0.0,
        "pass_rate": step / 60,
        "sampled_tokens": 4000,
        "sampled_tokens_p50": 61,
        "sampled_tokens_p90": 130,
        "sampled_tokens_max": 192,
        "turns": 2.25,
        "entropy": 0.53,
        "staleness_mean": 0.48,
        "staleness_max": 2,
        "staleness_share_0": 0.6,
        "staleness_share_1": 0.32,
        "staleness_share_2": 0.08,
        "drift_p50": 0.0012,
        "drift_p99": 0.041,
        "probe_p99": 4.2e-7,
        "seconds": 2.0,
        "forward_tokens": 9000,
        "engine_busy": 0.93,
        "learner_busy": 0.71,
        "cpu_sandboxes": 0.8,
        "grad_norm": 0.31,
        "lr": 3e-4,
        "groups": 8,
        "zero_variance": 3,
    }


ROWS = [row(step) for step in range(1, 13)]


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 50), (149, 24), (60, 10), (80, 5)])
def test_a_frame_fits_its_terminal(columns: int, lines: int):
    frame = draw(HEAD, ROWS, NOW, ["three groups without a pass"] * 9, columns, lines).plain.split("\n")
    assert len(frame) <= lines
    assert all(cell_len(line) <= columns for line in frame)
    assert "step 12 of 60" in frame[0] and "left" in frame[0]


@pytest.mark.parametrize("columns", [80, 200])
def test_everything_that_was_asked_for_is_there(columns: int):
    text = draw(HEAD, ROWS, NOW, [], columns, 24).plain
    for shown in (
        *("reward        ", "  tests      ", "  honest", "passed           20.0%", "4:30 left", "1:07 spent"),
        *("p90 130", "turns 2.25", "entropy           0.53", "40.0% at step 0, 55.0% at step 10"),
        *("mismatch         0.041  p99; p50 0.0012; same weights p99 4.2e-07", "staleness         0.48  0 █"),
        *("rollouts          7/64  5 running, 2 grading, 9 queued, 16 ready", "3 rollouts void, 1 groups"),
        *("sampler           2000  tokens/s; busy 93.0%", "learner           4500  tokens/s; busy 71.0%"),
    ):
        assert shown in text, (shown, text)


def test_few_lines_keep_what_matters_most():
    text = draw(HEAD, ROWS, NOW, [], 80, 5).plain
    assert [line[:8] for line in text.split("\n")[1:]] == ["reward  ", "passed  ", "stalenes", "rollouts"]


def test_before_the_first_step_it_says_that_it_waits():
    text = draw(HEAD, [], Snapshot(places=64), [], 80, 24).plain
    assert "waiting for the first step" in text and "0/64" in text


def test_the_histogram_has_a_column_for_each_age_and_bars_in_proportion():
    drawn = histogram(ROWS[0], 60)
    assert [word for word in drawn.split() if not word.startswith("█")] == ["0", "60%", "1", "32%", "2", "8%"]
    bars = [len(word) for word in drawn.split() if word.startswith("█")]
    assert bars[0] > bars[1] > bars[2] and len(drawn) <= 60


def test_a_curve_goes_from_the_least_to_the_most_of_its_values():
    assert spark([0.0, 0.5, 1.0], 10) == "▁▅█"
    assert spark([1.0, 1.0], 10) == "▁▁"
    assert spark([1.0], 10) == "" and spark([0.0, float("nan"), 1.0], 10) == "▁█"
    assert len(spark([float(each) for each in range(100)], 10)) == 10


def test_a_curve_whose_figures_are_equal_is_flat():
    rows = [row(step) | {"entropy": 5.984 + step * 1e-6} for step in range(1, 13)]
    (line,) = [line for line in draw(HEAD, rows, NOW, [], 80, 24).plain.split("\n") if line.startswith("entropy")]
    assert f"5.984  {'▁' * 12}  5.984 to 5.984" in line


def test_the_snapshot_counts_the_slots_of_untrained_groups():
    groups = {3: RolloutGroup(3, 0, [Slot("ready"), Slot("running")]), 4: RolloutGroup(4, 0, [Slot()])}
    dispatcher = SimpleNamespace(groups=groups, voids=Counter({"sandbox": 2}), in_flight=1)
    found = snapshot(dispatcher, 64, {"10": {"pass_rate": 0.5}, "0": {"pass_rate": 0.4}}, False)
    assert found.states == {"ready": 1, "running": 1, "queued": 1}
    assert found.evaluations == ((0, 0.4), (10, 0.5)) and found.voids == {"sandbox": 2}


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def show(stream: io.StringIO, look: Any = lambda: NOW, dashboard: bool = True, fail: bool = False) -> str:
    async def work() -> None:
        limit = TimeLimit(150.0)
        with open_display("rl", 60, 0, limit, look, history=lambda: [], dashboard=dashboard, stream=stream) as display:
            await steps(display)
            if fail:
                raise ValueError

    async def steps(display: Display) -> None:
        for each in ROWS:
            display.step(each)
        display.say("three groups without a pass")
        await asyncio.sleep(0)  # the first frame
        await asyncio.sleep(0)

    asyncio.run(work())
    return stream.getvalue()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


def test_a_terminal_is_filled_and_left_as_it_was_with_the_last_frame(terminal: Terminal):
    second, _, first = show(terminal).rpartition("\x1b[?1049l")
    assert "\x1b[?1049h" in second and "step 12 of 60" in second
    assert "step 12 of 60" in first and "three groups without a pass" in first
    assert second.count("\x1b[?25l") == 1 and (second + first).count("\x1b[?25h") == 1  # the cursor is back


def test_an_error_of_the_run_leaves_the_second_screen_too(terminal: Terminal):
    with pytest.raises(ValueError):
        show(terminal, fail=True)
    assert terminal.getvalue().rpartition("\x1b[?1049l")[1]


def test_a_frame_that_cannot_be_drawn_stops_the_dashboard_and_not_the_run(terminal: Terminal):
    looks = iter([RuntimeError("torn")])

    def look() -> Snapshot:
        for error in looks:
            raise error
        return NOW

    assert "the dashboard stopped: RuntimeError: torn" in show(terminal, look)


def test_elsewhere_there_is_the_bar(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    assert "\x1b" not in show(io.StringIO())
    assert "\x1b[?1049h" not in show(terminal, dashboard=False)
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[?1049h" not in show(terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("LINES", "6")
    assert "\x1b[?1049h" not in show(terminal)

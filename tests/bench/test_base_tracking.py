"""State tracking: edit distance and diffs against brute force, histories from a real repository, hostile ones too."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from etude.bench.base.edit_distance import edit_distance
from etude.bench.base.git_history import LARGEST_FILE, History, diff, read_histories, tidy
from etude.bench.base.model_under_test import ModelUnderTest
from etude.bench.base.state_tracking import END, choose_cases, fit, measure_tracking, write_prompt
from etude.bench.base.synthetic_history import invent_histories
from etude.core.errors import EtudeError


def brute_distance(left: str, right: str) -> int:
    row = list(range(len(right) + 1))
    for number, one in enumerate(left, 1):
        above, row = row, [number]
        for place, other in enumerate(right, 1):
            row.append(min(row[-1] + 1, above[place] + 1, above[place - 1] + (one != other)))
    return row[-1]


def patched(old: str, hunks: str) -> str:
    """A unified diff applied by its line numbers, with every context line checked."""
    lines, out, at = old.split("\n")[:-1], [], 0
    for line in hunks.split("\n")[:-1]:
        if line.startswith("@@"):
            start, _, count = line.split()[1].removeprefix("-").partition(",")
            first = int(start) - (count != "0")
            out += lines[at:first]
            at = first
        elif line[0] == "+":
            out.append(line[1:])
        else:
            assert lines[at] == line[1:]
            out += [line[1:]] if line[0] == " " else []
            at += 1
    return "".join(f"{line}\n" for line in [*out, *lines[at:]])


def test_the_distance_is_that_of_the_table() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        letters = "abcdé\n"[: rng.randint(1, 6)]
        left, right = ("".join(rng.choice(letters) for _ in range(rng.randint(0, 14))) for _ in range(2))
        assert edit_distance(left, right) == brute_distance(left, right)
    left = "".join(rng.choice("abc \n") for _ in range(400))
    right = "".join(c for c in left if rng.random() < 0.8) + "tail"
    assert edit_distance(left, right) == brute_distance(left, right)


def test_long_texts_take_no_time() -> None:
    rng = random.Random(0)
    left, right = ("".join(rng.choice("abcdefgh") for _ in range(20_000)) for _ in range(2))
    began = time.process_time()
    assert 0 < edit_distance(left, right) < 20_000
    assert time.process_time() - began < 5


def test_diffs_lead_from_each_version_to_the_next() -> None:
    for history in islice(invent_histories(7), 40):
        assert 3 <= history.changes <= 8
        for old, new in zip(history.versions, history.versions[1:], strict=False):
            assert old != new and patched(old, diff(old, new)) == new


def test_invented_histories_follow_from_the_seed() -> None:
    assert list(islice(invent_histories(1), 5)) == list(islice(invent_histories(1), 5))
    assert list(islice(invent_histories(1), 5)) != list(islice(invent_histories(2), 5))


# Histories from git


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    folder = tmp_path / "repository"
    folder.mkdir()
    names = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1", **names}

    def run(*arguments: str) -> str:
        command = ["git", "-c", "core.hooksPath=/dev/null", *arguments]
        return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout

    run("init", "-q", "-b", "main")
    return run


def commit(git: Callable[..., str], folder: Path, **files: str | None) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(exist_ok=True)
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
    git("add", "-A")
    git("commit", "-q", "-m", "change")


def test_a_repository_gives_back_the_versions_that_were_committed(git: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    wanted = {history.path: history for history in islice(invent_histories(3), 4)}
    for place in range(max(len(history.versions) for history in wanted.values())):
        for path, history in wanted.items():
            (folder / path).write_text(history.versions[min(place, history.changes)])
        git("add", "-A")
        git("commit", "-q", "--allow-empty", "-m", f"{place}")
    found = list(read_histories(folder))
    assert {history.path: history for history in found} == wanted
    assert [history.path for history in read_histories(folder)] == [history.path for history in found]


def test_only_the_main_line_counts_and_only_since_the_last_creation(git: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    commit(git, folder, a_py="a = 0", b_py="old", c_py="c = 0")
    commit(git, folder, a_py="a = 1\n", b_py=None, c_py="c = 1")
    commit(git, folder, b_py="b = 0\n", c_py="c = 2")
    git("checkout", "-q", "-b", "side")
    commit(git, folder, a_py="a = 2\n", b_py="b = 1\n")
    commit(git, folder, a_py="a = 3\n", b_py="b = 2\n")
    git("checkout", "-q", "main")
    commit(git, folder, d_py="d = 0\n", c_py=None)
    git("merge", "-q", "--no-edit", "side")
    commit(git, folder, b_py="b = 3\n")
    found = {history.path: history.versions for history in read_histories(folder)}
    assert found == {"a.py": ("a = 0\n", "a = 1\n", "a = 3\n"), "b.py": ("b = 0\n", "b = 2\n", "b = 3\n")}


def test_odd_files_are_left_out_and_nothing_of_the_repository_runs(git: Callable[..., str], tmp_path: Path) -> None:
    folder, trap = tmp_path / "repository", tmp_path / "trapped"
    for number in range(3):
        (folder / "binary.py").write_bytes(b"\0" + bytes([number]))
        (folder / "latin.py").write_bytes(b"\xe9" + bytes([65 + number]))
        (folder / "large.py").write_text(f"{number}" * (LARGEST_FILE + 1))
        (folder / "link.py").unlink(missing_ok=True)
        (folder / "link.py").symlink_to(f"target{number}")
        (folder / "data.bin").write_text(f"{number}")
        (folder / ".gitattributes").write_text("*.py diff=evil filter=evil\n")
        commit(git, folder, good_py=f"x = {number}\n")
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {trap}\n")
    script.chmod(0o755)
    for key in ("diff.evil.textconv", "diff.evil.command", "filter.evil.smudge", "core.fsmonitor", "diff.external"):
        git("config", key, str(script))
    git("config", "core.pager", str(script))
    (history,) = read_histories(folder)
    assert history == History("good.py", ("x = 0\n", "x = 1\n", "x = 2\n"))
    assert not trap.exists()


def test_no_repository_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match="there is no repository at"):
        list(read_histories(tmp_path / "none"))
    with pytest.raises(EtudeError, match="is not a git checkout"):
        list(read_histories(tmp_path))


# Cases and figures


def test_a_prompt_shows_a_version_the_changes_and_where_to_go_on() -> None:
    history = tidy("a.py", ["x = 1", "x = 2\n", "x = 2\n", "x = 2\ny = 3\n"])
    assert history.changes == 2
    assert write_prompt(history) == (
        "=== a.py, version 0\nx = 1\n=== end\n"
        "=== a.py, change 1\n@@ -1 +1 @@\n-x = 1\n+x = 2\n=== end\n"
        "=== a.py, change 2\n@@ -1 +1,2 @@\n x = 2\n+y = 3\n=== end\n"
        "=== a.py, version 2\n"
    )


def test_a_long_history_is_cut_at_its_beginning(make_tested: Callable[..., ModelUnderTest]) -> None:
    tested = make_tested()
    history = tidy("a.py", [f"x = {number}\n" for number in range(30)])
    whole = fit(tested, history, 10_000)
    assert whole is not None and whole.history == history
    cut = fit(tested, history, 400)
    assert cut is not None and 2 <= cut.history.changes < 29
    assert cut.history.versions == history.versions[-len(cut.history.versions) :]
    assert len(cut.prompt) + cut.room <= 400
    assert tested.text.decode(cut.prompt) == write_prompt(cut.history)
    assert tested.text.decode(cut.answer) == "x = 29\n" + END
    assert fit(tested, history, 60) is None
    with pytest.raises(EtudeError, match="no history of at least two changes fits into 60 tokens"):
        choose_cases(tested, [history], 3, 60)


def test_a_model_that_learned_the_files_is_nearer_to_them(
    make_tested: Callable[..., ModelUnderTest], teach: Callable[..., None]
) -> None:
    tested = make_tested()
    histories = [
        tidy("a.py", ["size = 1\nrate = 2\n", "size = 7\nrate = 2\n", "size = 7\nrate = 5\n"]),
        tidy("b.py", ["def f(x):\n    return x\n", "def f(y):\n    return y\n", "def f(y):\n    return -y\n"]),
    ]
    cases = choose_cases(tested, histories, 2, 700)
    before = measure_tracking(tested, cases)
    for file, case in zip(before.files, cases, strict=True):
        final = case.history.versions[-1]
        assert file.characters == len(final) and file.untouched == brute_distance(case.history.versions[0], final)
    teach(tested, [(*case.prompt, *case.answer) for case in cases], steps=60)
    after = measure_tracking(tested, cases)
    assert after.bits_per_byte < 0.3 * before.bits_per_byte
    assert after.distance < 0.5 * before.distance and after.untouched == before.untouched

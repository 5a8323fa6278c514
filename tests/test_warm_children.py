"""A copy of the warm process does what a new interpreter does: says the same, ends the same, is found and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.warm_children import WarmProcess

COMMANDS = (["--version"], ["no-such-command"], ["status", "nowhere"])


def said(words: list[str], folder: Path) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "etude", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is copied")
def test_a_copy_says_and_ends_as_a_new_interpreter_does(
    warm_process: WarmProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = [said(words, tmp_path) for words in COMMANDS]
    monkeypatch.setattr(warm_process, "commands", True)
    assert [said(words, tmp_path) for words in COMMANDS] == new
    assert [code for code, _, _ in new] == [0, 2, 2]


PROGRAM = """
import subprocess, sys
print(sys.argv, __name__, "torch" in sys.modules, flush=True)
command = [sys.executable, "-m", "etude", "--version"]
child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
told = child.stdout.read()
print(child.wait(), told, end="")
sys.exit("the end")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is copied")
@pytest.mark.parametrize("by", ["-c", "a file"])
def test_a_program_and_its_children_are_copies_too(warm_programs: None, tmp_path: Path, by: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ["-c", PROGRAM] if by == "-c" else ["program.py"]
    done = subprocess.run([sys.executable, *words, "x"], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    lines = done.stdout.splitlines()
    assert lines[0] == f"{[words[0], 'x']} __main__ True" and lines[1].startswith("0 "), done.stderr
    assert (done.returncode, done.stderr) == (1, "the end\n")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is copied")
def test_a_copy_is_a_child_with_its_own_arguments_and_folder(warm_children: None, tmp_path: Path) -> None:
    """A rank that looks for a store that is not there, so that it stays."""
    words = ["--rank=1", "--port=1", "--threads=1", "--deadline=600", f"--parent={os.getpid()}"]
    command = [sys.executable, "-m", "etude.learn.parallel.launch", *words]
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path, start_new_session=True)
    place, deadline = Path(f"/proc/{child.pid}"), time.monotonic() + 120
    try:
        while place.joinpath("cmdline").read_bytes().rstrip(b"\0").split(b"\0") != [word.encode() for word in command]:
            assert time.monotonic() < deadline and child.poll() is None, (tmp_path / "log").read_text()
        assert place.joinpath("cwd").readlink() == tmp_path and os.getsid(child.pid) == child.pid
        assert {path.name for path in place.joinpath("fd").iterdir()} >= {"0", "1", "2"}
    finally:
        child.send_signal(signal.SIGKILL)
    assert child.wait(60) == -signal.SIGKILL

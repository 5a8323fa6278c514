"""Processes that we start: told when they are ready, shown when they die, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from etude.core import child_process as child
from etude.core.errors import EtudeError

SECONDS = 30.0

# a child that does what the test's argument says
CHILD = """
import argparse, signal, sys
from pathlib import Path
from etude.core import child_process as child
parser = argparse.ArgumentParser()
parser.add_argument("does")
parser.add_argument("leaf", type=Path)
child.add_arguments(parser)
options = parser.parse_args()
child.die_with(options.parent, [options.folder, options.leaf])
options.leaf.write_text("a large file")
if options.does == "die":
    sys.exit("I cannot live like this")
print("something else" if options.does == "mumble" else "ready at the usual place", flush=True)
while True:
    signal.pause()
"""

# a parent that starts it, says where everything is, and ends in the way of its argument
PARENT = """
import asyncio, os, sys
from pathlib import Path
from etude.core import child_process as child
async def main():
    leaf = sys.argv[2]
    started = await child.start("sleeper", "small_child", ["live", leaf], ready="ready", leaves=[Path(leaf)])
    print(started.process.pid, started.folder.path, flush=True)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), 9)
    if sys.argv[1] == "all killed":
        os.kill(started.process.pid, 9)
        os.kill(os.getpid(), 9)
    if sys.argv[1] == "forked":
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
        print(started.folder.path.exists(), flush=True)
    return started
kept = asyncio.run(main())
"""

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module to start, and temporary folders where this test alone looks."""
    (tmp_path / "small_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    place = Path(tempfile.mkdtemp(prefix="test-"))  # pytest's are too deep for a socket
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    place.rmdir()  # fails when a folder was left behind


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, SECONDS))


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, what


def test_a_child_says_where_it_is_and_leaves_nothing_when_closed(tmp_path: Path, place: Path) -> None:
    leaf = tmp_path / "leaf"

    async def scenario() -> None:
        started = await child.start("sleeper", "small_child", ["live", str(leaf)], ready="ready at", leaves=[leaf])
        assert started.said == "the usual place"
        assert leaf.exists()
        assert [started.folder.path] == list(place.iterdir())
        assert started.folder.path.stat().st_mode & 0o077 == 0
        assert os.getsid(started.process.pid) != os.getsid(0), "a Ctrl-C in the terminal would reach it"
        await started.close(SECONDS)
        assert started.process.returncode == -signal.SIGTERM
        assert not leaf.exists()

    run(scenario())


def test_a_child_that_dies_is_shown_with_its_log(tmp_path: Path) -> None:
    leaf = tmp_path / "leaf"
    with pytest.raises(EtudeError, match=r"the sleeper process ended with code 1; (.|\n)*I cannot live like this"):
        run(child.start("sleeper", "small_child", ["die", str(leaf)], ready="ready", leaves=[leaf]))
    assert not leaf.exists()

    async def later() -> str | None:
        started = await child.start("sleeper", "small_child", ["live", str(leaf)], ready="ready", log=tmp_path / "log")
        (tmp_path / "log").write_text("its last words")
        started.process.kill()
        try:
            return await started.last_words()
        finally:
            await started.close(0)

    assert "ended with code -9" in (said := run(later()))
    assert "its last words" in said


def test_a_child_that_says_something_else_or_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def alive(self: child.Child) -> None:
        return None

    with monkeypatch.context() as patched:
        patched.setattr(child.Child, "last_words", alive)  # it lives on; no need to wait until that is sure
        with pytest.raises(EtudeError, match="said 'something else\\\\n' where 'ready' belongs"):
            run(child.start("sleeper", "small_child", ["mumble", str(tmp_path / "leaf")], ready="ready"))
    with pytest.raises(EtudeError, match=r"the sleeper process was not ready within 0\.01 s"):
        run(child.start("sleeper", "small_child", ["live", str(tmp_path / "leaf")], ready="ready", deadline=0.01))
    with pytest.raises(EtudeError, match="cannot be started with its log"):
        run(child.start("sleeper", "small_child", [], ready="ready", log=tmp_path / "no" / "folder" / "log"))


@pytest.mark.parametrize("end", ["killed", "by itself", "forked"])
def test_a_child_and_its_files_go_with_the_parent(end: str, tmp_path: Path, place: Path) -> None:
    leaf = tmp_path / "leaf"
    command = [sys.executable, "-c", PARENT, end, str(leaf)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == (-9 if end == "killed" else 0), done.stderr
    pid, _, *more = done.stdout.split()
    assert more in ([], ["True"]), "a fork that ended took the folder away"
    wait_until(lambda: gone(int(pid)), "the child outlived its parent")
    wait_until(lambda: not leaf.exists() and not list(place.iterdir()), "it left its files")


def test_what_is_left_when_all_are_killed_goes_at_the_next_start(tmp_path: Path, place: Path) -> None:
    leaf = tmp_path / "leaf"
    command = [sys.executable, "-c", PARENT, "all killed", str(leaf)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    pid, left = done.stdout.split()
    assert done.returncode == -9
    wait_until(lambda: gone(int(pid)), "it was killed")
    assert Path(left).is_dir()
    foreign = place / "etude-store-of-another-room"
    foreign.mkdir()

    first, second = child.Folder("sleeper"), child.Folder("sleeper")
    assert not Path(left).exists()
    assert first.path.is_dir(), "a folder in use was taken for abandoned"
    assert foreign.is_dir()
    foreign.rmdir()
    first.remove()
    second.remove()


def test_a_folder_that_another_process_takes_for_abandoned_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = list[Path](), tempfile.mkdtemp

    def taken_once(**options: Any) -> str:
        made.append(Path(make(**options)))
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", taken_once)
    folder = child.Folder("sleeper")
    assert folder.path == made[1]
    folder.remove()


def test_no_room_for_a_temporary_folder_is_one_sentence(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "gone"))
    with pytest.raises(EtudeError, match="the sleeper process cannot be started without a temporary folder: "):
        run(child.start("sleeper", "small_child", [], ready="ready"))


def test_a_socket_is_for_this_user_alone_and_never_replaces_a_file(place: Path) -> None:
    folder = child.Folder("sleeper")
    child.listen(folder.socket).close()
    with child.listen(folder.socket):  # over what the first one left
        assert folder.socket.stat().st_mode & 0o077 == 0
    (folder.path / "notes").write_text("keep me")
    with pytest.raises(EtudeError, match=r"cannot listen on .* in use"):
        child.listen(folder.path / "notes")
    assert (folder.path / "notes").read_text() == "keep me"
    folder.remove()


def test_a_socket_fits_where_temporary_folders_are_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = child.Folder("sleeper")
    with child.listen(folder.socket):
        assert not list(deep.iterdir())
    folder.remove()

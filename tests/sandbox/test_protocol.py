"""What every backend does alike: each verb of the protocol, on each backend that this machine can offer."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.sandbox.base import Change, Sandbox, SandboxFailure, SandboxLimits

World = Any
PYTHON = sys.executable


def test_a_program_says_what_it_said_and_how_it_ended(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
            result = await sandbox.run([PYTHON, "-c", script])
            assert (result.code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
            assert not (result.timed_out or result.truncated or result.oom or result.ok)
            assert 0 < result.seconds < 30
            assert (await sandbox.run([PYTHON, "hello.py"])).stdout == b"hello\n"

    world.run(go())


def test_standard_input_arrives_whole_and_non_utf8_output_comes_back_byte_for_byte(world: World) -> None:
    data = bytes(range(256)) * 4096

    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            result = await sandbox.run(["cat"], stdin=data, max_output=len(data) + 2)
            assert result.stdout == data
            assert not result.truncated
            assert (await sandbox.run(["cat"])).stdout == b""
            ignored = await sandbox.run(["true"], stdin=data)
            assert ignored.code == 0

    world.run(go())


def test_a_program_that_cannot_start_is_reported_as_a_shell_would(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            missing = await sandbox.run(["no-such-program"])
            assert missing.code == 127
            assert b"no-such-program" in missing.stderr
            assert (await sandbox.run(["./hello.py"])).code == 126
            nowhere = await sandbox.run(["true"], cwd="/workspace/nowhere")
            assert nowhere.code == 126
            assert b"nowhere" in nowhere.stderr
            with pytest.raises(EtudeError, match="argv is empty"):
                await sandbox.run([])

    world.run(go())


def test_a_signal_is_a_negative_code(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            result = await sandbox.run(["sh", "-c", "kill -TERM $$"])
            assert result.code == -15

    world.run(go())


def test_environment_and_folder_are_given_and_the_hosts_is_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_SECRET", "do not leak")

    async def go() -> None:
        async with await world.host.start([world.layer], env={"COLOUR": "blue"}) as sandbox:
            script = 'echo "$COLOUR $SIZE [$HOST_SECRET]"; pwd'
            result = await sandbox.run(["sh", "-c", script], env={"SIZE": "9"}, cwd="/workspace/src")
            said, folder = result.stdout.decode().splitlines()
            assert said == "blue 9 []"
            assert folder.endswith("/workspace/src")

    world.run(go())


def test_long_output_keeps_its_start_and_its_end(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            script = "print('start'); print('x' * 3_000_000); print('end')"
            result = await sandbox.run([PYTHON, "-c", script], max_output=1000)
            assert result.truncated
            assert result.stdout.startswith(b"start\nxxx")
            assert result.stdout.endswith(b"xxx\nend\n")
            left_out = 3_000_000 + len("start\n\nend\n") - 1000
            assert f"[... {left_out} bytes left out ...]".encode() in result.stdout
            assert len(result.stdout) < 1100

    world.run(go())


def test_at_its_deadline_a_program_and_all_that_it_started_is_dead(world: World) -> None:
    marker = sleep_for(86399.25)

    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            script = f"(setsid sleep {marker} &) ; nohup sleep {marker} & sleep {marker}"
            result = await sandbox.run(["sh", "-c", script], timeout=0.3)
            assert result.timed_out
            assert result.code == -9
            assert not result.ok
            assert _processes_with(marker) == []

    world.run(go())


def test_what_a_program_leaves_behind_ends_with_it(world: World) -> None:
    marker = sleep_for(86399.75)

    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            result = await sandbox.run(["sh", "-c", f"(setsid sleep {marker} >/dev/null 2>&1 &) ; echo done"])
            assert (result.code, result.stdout) == (0, b"done\n")
            assert _processes_with(marker) == []

    world.run(go())


def test_a_spawned_program_stays_answers_and_ends_when_told(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            process = await sandbox.spawn(["cat"])
            await process.send(b"one\n")
            assert await _output(process) == b"one\n"
            assert (await sandbox.run(["true"])).code == 0
            assert process.running
            assert await process.wait(0.01) is None
            await process.send(b"two\n")
            await process.close_stdin()
            result = await process.wait(30)
            assert result is not None
            assert (result.code, result.stdout) == (0, b"two\n")
            assert not process.running
            marker = sleep_for(86399.5)
            endless = await sandbox.spawn(["sleep", marker])
            assert (await endless.kill()).code == -9
            assert _processes_with(marker) == []

    world.run(go())


def test_spawned_programs_end_with_a_reset_and_with_the_sandbox(world: World) -> None:
    marker = sleep_for(86398.5)

    async def go() -> None:
        sandbox = await world.host.start([world.layer])
        first = await sandbox.spawn(["sleep", marker])
        await sandbox.reset()
        ended = await first.wait(30)
        assert ended is not None
        assert ended.code == -9
        await sandbox.spawn(["sleep", marker])
        await sandbox.close()
        assert _processes_with(marker) == []

    world.run(go())


def test_files_are_read_and_written_whole_and_in_parts(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            assert await sandbox.read("/workspace/data.bin") == bytes(range(256))
            assert await sandbox.read("/workspace/data.bin", offset=250) == bytes(range(250, 256))
            assert await sandbox.read("/workspace/data.bin", offset=10, limit=3) == bytes([10, 11, 12])
            await sandbox.write("/workspace/new/folder/file", b"first, longer")
            await sandbox.write("/workspace/new/folder/file", b"second", mode=0o750)
            assert await sandbox.read("/workspace/new/folder/file") == b"second"
            told = await sandbox.run(["stat", "-c", "%a", "new/folder/file"])
            assert told.stdout == b"750\n"
            await sandbox.write("/workspace/hello.py", b"print('changed')\n")
            assert (await sandbox.run([PYTHON, "hello.py"])).stdout == b"changed\n"

    world.run(go())


def test_a_file_that_is_not_there_or_not_a_file_is_an_oserror(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            with pytest.raises(FileNotFoundError):
                await sandbox.read("/workspace/nothing")
            with pytest.raises(IsADirectoryError):
                await sandbox.read("/workspace/src")
            with pytest.raises(OSError):
                await sandbox.write("/workspace/hello.py/below", b"")
            await sandbox.run(["mkfifo", "pipe"])
            with pytest.raises(OSError):
                await sandbox.read("/workspace/pipe")

    world.run(go())


def test_diff_names_what_was_added_modified_and_deleted(world: World) -> None:
    script = """
    set -e
    echo new > added.txt; chmod 600 added.txt
    echo 'VALUE = 2' > src/module.py
    rm data.bin
    rm -r src/deep; mkdir src/deep; echo again > src/deep/other
    ln -s ../hello.py src/link
    chmod 755 hello.py
    echo same > same; rm same
    """

    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            assert await sandbox.diff() == []
            assert (await sandbox.run(["sh", "-c", script])).code == 0
            assert await sandbox.diff("/workspace") == [
                Change("/workspace/added.txt", "added", "file", 4, 0o600),
                Change("/workspace/data.bin", "deleted", "file", 256, 0o644),
                Change("/workspace/hello.py", "modified", "file", 15, 0o755),
                Change("/workspace/src/deep/er", "deleted", "folder", 0, 0o755),
                Change("/workspace/src/deep/er/leaf.txt", "deleted", "file", 5, 0o644),
                Change("/workspace/src/deep/other", "added", "file", 6, 0o644),
                Change("/workspace/src/link", "added", "link", 0, 0o777, "../hello.py"),
                Change("/workspace/src/module.py", "modified", "file", 10, 0o644),
            ]
            under = await sandbox.diff("/workspace/src/deep")
            assert [change.path for change in under] == [
                "/workspace/src/deep/er",
                "/workspace/src/deep/er/leaf.txt",
                "/workspace/src/deep/other",
            ]

    world.run(go())


def test_a_file_that_was_touched_but_not_changed_is_no_change(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            await sandbox.run(["sh", "-c", "touch hello.py; cat src/module.py > t; cat t > src/module.py; rm t"])
            assert await sandbox.diff() == []

    world.run(go())


def test_a_folder_in_a_files_place_and_a_file_in_a_folders_place(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            await sandbox.run(["sh", "-c", "rm hello.py; mkdir hello.py; echo 1 > hello.py/x; rm -r src; echo 2 > src"])
            first = await sandbox.diff()
            assert [(change.path, change.kind, change.what) for change in first] == [
                ("/workspace/hello.py", "modified", "folder"),
                ("/workspace/hello.py/x", "added", "file"),
                ("/workspace/src", "modified", "file"),
                ("/workspace/src/deep", "deleted", "folder"),
                ("/workspace/src/deep/er", "deleted", "folder"),
                ("/workspace/src/deep/er/leaf.txt", "deleted", "file"),
                ("/workspace/src/module.py", "deleted", "file"),
            ]
            async with await sandbox.fork() as copy:
                assert await copy.diff() == first
                assert await copy.read("/workspace/hello.py/x") == b"1\n"
                assert await copy.read("/workspace/src") == b"2\n"

    world.run(go())


def test_a_fork_has_the_files_and_then_goes_its_own_way(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            await _change(sandbox)
            async with await sandbox.fork() as copy:
                assert await _listing(copy) == await _listing(sandbox)
                assert await copy.diff() == await sandbox.diff()
                assert (await copy.run(["stat", "-c", "%h", "twin.py"])).stdout == b"2\n"
                await copy.write("/workspace/hello.py", b"copy")
                await sandbox.write("/workspace/hello.py", b"original")
                assert await copy.read("/workspace/hello.py") == b"copy"
                assert await sandbox.read("/workspace/hello.py") == b"original"
                async with await copy.fork() as second:
                    assert await second.read("/workspace/hello.py") == b"copy"
                    assert await second.diff() == await copy.diff()

    world.run(go())


def test_a_snapshot_outlives_its_sandbox_and_equal_files_give_equal_digests(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            await _change(sandbox)
            before, changes = await _listing(sandbox), await sandbox.diff()
            snapshot = await sandbox.snapshot()
            assert (await sandbox.snapshot()).digest == snapshot.digest
            await sandbox.write("/workspace/more", b"more")
            assert (await sandbox.snapshot()).digest != snapshot.digest
        async with await world.host.start(world.store.snapshot(snapshot.digest)) as restored:
            assert await _listing(restored) == before
            assert await restored.diff() == changes
            await restored.write("/workspace/more", b"more")
            await restored.reset()
            assert await _listing(restored) == before

    world.run(go())


def test_a_reset_goes_back_to_the_start(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            before = await _listing(sandbox)
            await _change(sandbox)
            assert await _listing(sandbox) != before
            await sandbox.reset()
            assert await _listing(sandbox) == before
            assert await sandbox.diff() == []

    world.run(go())


def test_later_layers_lie_over_earlier_ones(world: World) -> None:
    upper = world.store.add_files({"hello.py": b"print('upper')\n", "src/extra.py": b""})

    async def go() -> None:
        async with await world.host.start([world.layer, upper]) as sandbox:
            assert (await sandbox.run([PYTHON, "hello.py"])).stdout == b"upper\n"
            assert (await sandbox.run(["ls", "src"])).stdout == b"deep\nextra.py\nmodule.py\n"
            assert await sandbox.diff() == []

    world.run(go())


def test_a_snapshot_can_become_a_layer_for_many(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            await _change(sandbox)
            before = await _listing(sandbox)
            snapshot = await sandbox.snapshot()
        layer = world.store.add_snapshot(snapshot)
        assert world.store.add_snapshot(snapshot) == layer
        async with await world.host.start([*snapshot.layers, layer]) as sandbox:
            assert await _listing(sandbox) == before
            assert await sandbox.diff() == []

    world.run(go())


def test_runs_at_once_do_not_disturb_each_other(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            script = "import sys; data = sys.stdin.read(); print(data * 3, end='')"
            runs = [sandbox.run([PYTHON, "-S", "-c", script], stdin=f"{n} ".encode()) for n in range(6)]
            results = await asyncio.gather(*runs, sandbox.run(["sleep", "60"], timeout=0.2))
            assert [result.stdout for result in results[:6]] == [f"{n} ".encode() * 3 for n in range(6)]
            assert results[6].timed_out

    world.run(go())


def test_a_run_that_ends_takes_what_it_left_and_nothing_of_one_that_lives(world: World) -> None:
    # Both leave a process whose parent is gone; the first waits meanwhile.
    first = "(sleep 600 >&- 2>&- & echo $! > of-first); mkfifo go; read line < go"
    second = "until [ -p go ]; do :; done; (sleep 600 >&- 2>&- & echo $! > of-second)"
    alive = "for name in of-first of-second; do kill -0 $(cat $name) 2>&- && echo $name; done; true"

    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            waiting = asyncio.ensure_future(sandbox.run(["sh", "-c", first]))
            await asyncio.sleep(0)  # it is asked for before the second
            assert (await sandbox.run(["sh", "-c", second])).code == 0
            assert (await sandbox.run(["sh", "-c", alive])).stdout == b"of-first\n"
            assert (await sandbox.run(["sh", "-c", "echo > go"])).code == 0
            assert (await waiting).code == 0
            assert (await sandbox.run(["sh", "-c", alive])).stdout == b""

    world.run(go())


def test_a_cancelled_run_leaves_nothing_running(world: World) -> None:
    marker = sleep_for(86397.5)

    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            task = asyncio.create_task(sandbox.run(["sleep", marker]))
            while not _processes_with(marker):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while _processes_with(marker):
                await asyncio.sleep(0)
            assert (await sandbox.run(["true"])).code == 0

    world.run(go())


def test_a_closed_sandbox_says_so(world: World) -> None:
    async def go() -> None:
        sandbox = await world.host.start([world.layer])
        await sandbox.close()
        await sandbox.close()
        with pytest.raises(SandboxFailure) as caught:
            await sandbox.run(["true"])
        assert caught.value.cause == "closed"

    world.run(go())


def test_processor_time_is_limited(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer], limits=SandboxLimits(cpu_seconds=1)) as sandbox:
            result = await sandbox.run([PYTHON, "-S", "-c", "while True: pass"], timeout=50)
            assert result.code in (-24, -9)
            assert not result.timed_out

    world.run(go())


async def _change(sandbox: Sandbox) -> None:
    script = """
    set -e
    echo more >> hello.py; rm data.bin; rm -r src/deep; mkdir src/deep; echo x > src/deep/y; ln -s y src/deep/z
    ln hello.py twin.py; mkfifo pipe; chmod 700 src; touch -d 2001-02-03T04:05:06 hello.py
    echo q > "$(printf 'n\\303\\244me')"
    """
    result = await sandbox.run(["sh", "-c", script])
    assert result.code == 0, result.stderr


async def _listing(sandbox: Sandbox) -> bytes:
    """Every path with its kind, mode, size and time, and the content of all files."""
    told = await sandbox.run(["find", ".", "-type", "f", "-printf", "%p %y %m %s %T@ %l\\n"])
    other = await sandbox.run(["find", ".", "!", "-type", "f", "-printf", "%p %y %m %l\\n"])
    files = await sandbox.run(["sh", "-c", "find . -type f | sort | xargs -d '\\n' cksum"])
    assert told.code == other.code == files.code == 0
    rows = told.stdout
    if sandbox.capabilities.backend == "docker":  # an engine's copies have whole seconds, rounded as it likes
        rows = re.sub(rb" \d{9,}\.\d+ ", b" ", rows)
    lines = sorted(rows.splitlines()) + sorted(other.stdout.splitlines())
    return b"\n".join([*lines, files.stdout])


async def _output(process: Any) -> bytes:
    async def wait() -> bytes:
        while not (said := process.output()[0]):
            await asyncio.sleep(0)
        return bytes(said)

    return await asyncio.wait_for(wait(), 30)


def sleep_for(seconds: float) -> str:
    """A time to sleep that is this process's own: the tests may run twice on a machine."""
    return f"{seconds}{os.getpid()}"


def _processes_with(argument: str) -> list[int]:
    """Processes of the whole machine that were started with this argument."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and argument.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found

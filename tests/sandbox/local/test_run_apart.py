"""A program apart: alone in a pid namespace of its own, which nothing in the sandbox can signal or name."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from etude.sandbox.base import RunsApart
from etude.sandbox.local.host import LocalHost

PYTHON = sys.executable


def test_nothing_that_it_starts_can_end_it_and_all_of_it_ends_with_it(local: Any) -> None:
    code = """
import os, signal, time
child = os.fork()
if child == 0:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
        os.kill(1, number)
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    os._exit(7)
print(os.getpid(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

    async def go() -> None:
        async with await local.host.start([local.layer]) as sandbox:
            assert isinstance(sandbox, RunsApart)
            alive = ["sh", "-c", "set -- /proc/[0-9]*; echo $#"]  # the shell alone: a pipe's programs come and go
            before = await sandbox.run(alive)
            result = await sandbox.run_apart([PYTHON, "-S", "-c", code])
            assert (result.code, result.stdout) == (0, b"1 7\n")
            assert (await sandbox.run(alive)).stdout == before.stdout
            late = await sandbox.run_apart(["sleep", "600"], timeout=0.2)
            assert late.timed_out
            assert (await sandbox.run_apart(["no-such-program"])).code == 127

    local.run(go())


def test_what_it_starts_cannot_name_it_and_its_orphans_are_counted(local: Any) -> None:
    code = """
import os, resource, sys, time
child = os.fork()
if child == 0:
    if os.fork() == 0:  # an orphan that works for a while
        ends = time.process_time() + 0.2
        while time.process_time() < ends:
            pass
        os._exit(0)
    try:
        os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        pass
    os._exit(100 + os.getppid())
seen = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
try:
    while True:  # until somebody has waited for the orphan, however busy the machine is: numbers are given in order
        os.kill(child + 1, 0)
        time.sleep(0.01)
except ProcessLookupError:
    pass
os.kill(-1, 9)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
spent = resource.getrusage(resource.RUSAGE_CHILDREN)
print(seen, os.sched_getscheduler(0) == os.SCHED_OTHER, spent.ru_utime + spent.ru_stime >= 0.2)
"""

    async def go() -> None:
        async with await local.host.start([local.layer]) as sandbox:
            result = await sandbox.run_apart([PYTHON, "-S", "-c", code])
            assert (result.code, result.stdout) == (0, b"100 True True\n"), result.stderr

    local.run(go())


def test_a_module_that_the_host_has_loaded_runs_without_a_new_interpreter(tmp_path: Path) -> None:
    """Any module with a `main` will do: one of the standard library's stands in for ours."""

    async def go() -> None:
        async with await LocalHost.open(tmp_path, preload=["json.tool"]) as host:
            assert host.preload == ("json.tool",)
            async with await host.start([host.store.add_files({})]) as sandbox:
                result = await sandbox.run_apart("json.tool", stdin=b'{"a":1}')
                assert (result.code, result.stdout) == (0, b'{\n    "a": 1\n}\n'), result.stderr
                wrong = await sandbox.run_apart("json.tool", stdin=b"{")
                assert wrong.code != 0

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_host_knows_what_its_sandboxes_took_without_their_programs(local: Any) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"

    async def go() -> None:
        before = Counter(local.host.spent)
        async with await local.host.start([local.layer]) as sandbox:
            assert (await sandbox.run_apart([PYTHON, "-S", "-c", burn])).code == 0
        spent = Counter(local.host.spent)
        spent.subtract(before)
        assert spent["sandbox_starts"] == spent["sandbox_ends"] == 1
        assert 0 < spent["sandbox_start_seconds"] < spent["sandbox_seconds"] < 0.3

    local.run(go())

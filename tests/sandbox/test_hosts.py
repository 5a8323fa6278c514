"""A backend by its name; and one of one's own, which takes one file and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.sandbox.hosts import BACKENDS, open_host

# A whole backend: programs of the host in a folder of the store, without copies, limits or supervisors.
MINE = """
import os
import signal
import time

from etude.sandbox.backend import BackendHost, BackendSandbox
from etude.sandbox.base import Capabilities
from etude.sandbox.streams import Collector, Feeder, StreamedProcess, start_with_pipes
import asyncio


class MyProcess(StreamedProcess):
    def __init__(self, command, folder):
        argv = ["env", "-C", str(folder), *(f"{name}={value}" for name, value in command.env.items()), *command.argv]
        self._process, (stdin, *outputs) = start_with_pipes(argv)
        super().__init__(Feeder(stdin), *(Collector(each, command.max_output) for each in outputs))
        self._began = time.monotonic()
        self._ended = asyncio.ensure_future(asyncio.to_thread(self._process.wait))
        self._ended.add_done_callback(lambda _: self._close_streams())

    async def _outcome(self):
        self._close_streams()
        return self._result(self._ended.result(), seconds=time.monotonic() - self._began)

    def abandon(self):
        os.killpg(self._process.pid, signal.SIGKILL)

    async def kill(self):
        self.abandon()
        return await self.wait(10)


class MySandbox(BackendSandbox):
    folder = None

    async def _launch(self, command):
        return MyProcess(command, self.folder)

    async def _changes_below(self, folder):
        return []

    async def _pack(self, out):
        raise NotImplementedError

    async def close(self):
        self._host.forget(self)


class MyHost(BackendHost):
    @classmethod
    async def open(cls, store, preload=()):
        return cls(store)

    @property
    def capabilities(self):
        return Capabilities("mine", False, False, "none", "none", "none", "process group")

    async def open_sandbox(self, recipe, changes):
        sandbox = MySandbox(self, recipe)
        sandbox.folder = recipe.layers[0].path / recipe.workdir.strip("/")
        self._sandboxes.add(sandbox)
        return sandbox
"""


def test_a_backend_of_ones_own_is_one_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)

    async def go() -> None:
        async with await open_host(f"{file}:MyHost", tmp_path / "store") as host:
            layer = host.store.add_files({"hello.txt": b"hello\n"})
            async with await host.start([layer]) as sandbox:
                assert sandbox.capabilities.backend == "mine"
                result = await sandbox.run(["cat", "hello.txt", "-"], stdin=b"and you\n")
                assert (result.code, result.stdout) == (0, b"hello\nand you\n")
                assert (await sandbox.run(["sh", "-c", "echo $A"], env={"A": "b"})).stdout == b"b\n"
                late = await sandbox.run(["sleep", "600"], timeout=0.1)
                assert late.timed_out
                assert late.code == -9
                process = await sandbox.spawn(["cat"])
                await process.send(b"x")
                await process.close_stdin()
                ended = await process.wait(10)
                assert ended is not None
                assert ended.stdout == b"x"

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_folder_and_one_line_of_the_table_are_a_backend_with_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my_backend"
    folder.mkdir()
    (folder / "host.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(BACKENDS, "mine", "my_backend.host:MyHost")

    async def go() -> bytes:
        host = await open_host("mine", tmp_path / "store")
        async with host, await host.start([host.store.add_files({})]) as sandbox:
            return (await sandbox.run(["echo", "here"])).stdout

    assert asyncio.run(asyncio.wait_for(go(), 60)) == b"here\n"


def test_a_name_that_no_backend_has_is_refused_with_the_names_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match=r"no sandbox backend 'nowhere'; choose local, docker .* plain"):
        asyncio.run(open_host("nowhere", tmp_path))
    with pytest.raises(EtudeError, match="does not exist"):
        asyncio.run(open_host(f"{tmp_path}/nothing.py:Host", tmp_path))

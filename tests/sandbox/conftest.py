"""One event loop and one host of each backend for all behaviour tests: starting a launcher for each would cost more
than the tests themselves."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

import etude.sandbox
from etude.core.child_process import listen
from etude.core.errors import EtudeError
from etude.sandbox.base import Host, Layer
from etude.sandbox.docker.engine import Engine
from etude.sandbox.hosts import open_host
from etude.sandbox.remote.host import RemoteHost
from etude.sandbox.remote.server import SandboxServer, ServerSettings
from etude.sandbox.store.layers import Store

Value = TypeVar("Value")

FILES = {
    "hello.py": b"print('hello')\n",
    "src/module.py": b"VALUE = 1\n",
    "src/deep/er/leaf.txt": b"leaf\n",
    "data.bin": bytes(range(256)),
}


@dataclass
class World:
    """A host with a store and a small layer, and the loop that they live in."""

    loop: asyncio.AbstractEventLoop
    host: Host
    store: Store
    layer: Layer

    seconds: float = 60.0  # for one test

    def run(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, self.seconds))


def _engine() -> bool:
    """Whether a container engine answers here: without one there is nothing that its tests could run."""
    try:
        Engine.find()
    except EtudeError:
        return False
    return True


BACKENDS = ["local", "remote", "plain", *(["docker"] if _engine() else [])]


def _world(backend: str, folder: Path, seconds: float = 60.0) -> Iterator[World]:
    loop = asyncio.new_event_loop()
    store = Store(folder)
    host = loop.run_until_complete(open_host(backend, store))
    try:
        yield World(loop, host, store, store.add_files(FILES), seconds)
    finally:
        loop.run_until_complete(host.close())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The local backend. On a machine without namespaces this fails and says why: these tests are not optional."""
    yield from _world("local", tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="session")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A sandbox host in this process behind a local socket, with a store of its own, and its client."""
    folder = tmp_path_factory.mktemp("remote")
    loop = asyncio.new_event_loop()
    store = Store(folder / "client")

    async def open_both() -> tuple[Any, Any, Any, Any]:
        served = await open_host("local", folder / "server")
        server = SandboxServer(served, ServerSettings("a token of the tests", 64))
        answering = await server.listen(listen(folder / "s"))
        client = await RemoteHost.open(store, addresses=[str(folder / "s")], token="a token of the tests")
        return served, server, answering, client

    served, server, answering, client = loop.run_until_complete(open_both())
    try:
        yield World(loop, client, store, store.add_files(FILES))
    finally:
        for each in (client, answering, server, served):
            loop.run_until_complete(each.close())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    yield from _world("plain", tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Containers, where there is an engine; each verb is a program of the engine's, which takes its time."""
    yield from _world("docker", tmp_path_factory.mktemp("docker"), 600.0)


@pytest.fixture(params=BACKENDS)
def world(request: pytest.FixtureRequest) -> World:
    """Each backend in turn: the protocol is the same."""
    found: World = request.getfixturevalue(request.param)
    return found


@dataclass(frozen=True)
class Identity:
    """A user to run a script as, with an interpreter and a copy of the room that this user can read."""

    name: str
    python: str
    packages: Path
    folder: Path  # for the script's own files
    options: dict[str, Any]  # of subprocess

    def start(self, script: str, *arguments: str | Path) -> subprocess.Popen[str]:
        command = [self.python, str(self.packages / script), *map(str, arguments)]
        environment = {"PYTHONPATH": str(self.packages), "PATH": "/usr/bin:/bin"}
        return subprocess.Popen(
            command,
            env=environment,
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **self.options,
        )


@pytest.fixture(scope="session", params=["root", "ordinary user"] if os.geteuid() == 0 else ["ordinary user"])
def identity(request: pytest.FixtureRequest) -> Iterator[Identity]:
    """Root and an ordinary user; who runs the tests without being root can only be the latter."""
    # Not under pytest's folder, which is closed to other users.
    with tempfile.TemporaryDirectory(prefix="etude-sandbox-") as name:
        root = Path(name)
        root.chmod(0o755)
        packages, folder = root / "packages", root / "work"
        folder.mkdir()
        room = Path(etude.sandbox.__file__).parent
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(room, packages / "etude" / "sandbox", ignore=ignore)
        (packages / "etude" / "core").mkdir()
        for file in ("__init__.py", "core/__init__.py", "core/errors.py"):
            shutil.copy(room.parent / file, packages / "etude" / file)
        for script in ("escapes.py", "orphans.py"):
            shutil.copy(Path(__file__).parent / "local" / script, packages / script)
        for path in [packages, *packages.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        options: dict[str, Any] = {}
        if os.geteuid() == 0 and request.param == "ordinary user":
            options = {"user": 65534, "group": 65534, "extra_groups": []}
            os.chown(folder, 65534, 65534)
        yield Identity(request.param, _python_for(options), packages, folder, options)


def _python_for(options: dict[str, Any]) -> str:
    """An interpreter that this user may start: the one of the tests often lies in root's own folder."""
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    for python in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        try:
            if subprocess.run([python, "-I", "-c", check], capture_output=True, **options).returncode == 0:
                return python
        except OSError:
            continue
    raise RuntimeError("no Python 3.11 or later that an ordinary user can start; install one in /usr or /usr/local")

"""Tests that need a container engine: collected only where one answers.

Their image is made of this machine's own programs, as no registry may be within reach.
"""

from __future__ import annotations

import asyncio
import subprocess
import tarfile
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from etude.core.errors import EtudeError
from etude.sandbox.docker.engine import Engine
from etude.sandbox.docker.host import DockerHost

Value = TypeVar("Value")
BASE = "etude-tests-base"
PROGRAMS = (
    *("sh", "bash", "cat", "chmod", "env", "find", "grep", "head", "id", "ln", "ls", "mkdir", "mkfifo"),
    *("rm", "setsid", "sleep", "stat", "tail", "touch", "true", "wc"),
)


def _engine() -> bool:
    try:
        Engine.find()
    except EtudeError:
        return False
    return True


collect_ignore = [] if _engine() else ["test_containers.py", "test_tasks.py"]


@dataclass
class Dock:
    """A host of containers, the loop that it lives in, and an image to start from."""

    loop: asyncio.AbstractEventLoop
    host: DockerHost
    base: str

    def run(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 900))


@pytest.fixture(scope="session")
def dock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dock]:
    folder = tmp_path_factory.mktemp("dock")
    loop = asyncio.new_event_loop()
    host = loop.run_until_complete(DockerHost.open(folder / "store"))
    _write_base(folder / "base.tar")
    loop.run_until_complete(host.engine.output("import", str(folder / "base.tar"), BASE))
    try:
        yield Dock(loop, host, BASE)
    finally:
        loop.run_until_complete(host.close())
        loop.run_until_complete(host.engine.call(["rmi", "--force", BASE]))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _write_base(target: Path) -> None:
    """A root with a shell and a few programs, and the libraries that they need."""
    programs = [f"/usr/bin/{name}" for name in PROGRAMS]
    told = [subprocess.run(["ldd", each], capture_output=True, text=True, check=True).stdout for each in programs]
    libraries = {word for text in told for word in text.split() if word.startswith("/")}
    with tarfile.open(target, "w") as out:
        for path, mode in ((".", 0o755), ("tmp", 0o1777), ("root", 0o700), ("etc", 0o755)):
            info = tarfile.TarInfo(path)
            info.type, info.mode = tarfile.DIRTYPE, mode
            out.addfile(info)
        for name in ("bin", "lib", "lib64", "sbin"):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, f"usr/{name}"
            out.addfile(info)
        for path in sorted({*programs, *libraries}):
            real = Path(path).resolve()
            info = out.gettarinfo(real, path.lstrip("/") if path.startswith("/usr") else f"usr{path}")
            info.type, info.uid, info.gid, info.size = tarfile.REGTYPE, 0, 0, real.stat().st_size
            with real.open("rb") as file:
                out.addfile(info, file)

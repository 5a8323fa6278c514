"""Tests that need a container engine: collected only where one answers.

Their image is made of this machine's own programs, as no registry may be within reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from benchmarks.doors.base_image import write_base
from etude.core.errors import EtudeError
from etude.sandbox.docker.engine import Engine
from etude.sandbox.docker.host import DockerHost

Value = TypeVar("Value")
BASE = "etude-tests-base"


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
    write_base(folder / "base.tar")
    loop.run_until_complete(host.engine.output("import", str(folder / "base.tar"), BASE))
    try:
        yield Dock(loop, host, BASE)
    finally:
        loop.run_until_complete(host.close())
        loop.run_until_complete(host.engine.call(["rmi", "--force", BASE]))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

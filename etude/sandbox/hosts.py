"""A sandbox backend by its name. No backend is a fallback for another: who wants one says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from etude.core.errors import EtudeError
from etude.sandbox.base import Host
from etude.sandbox.store.layers import Store


class StoringHost(Host, Protocol):
    """A host with the store of its layers: each of ours."""

    @property
    def store(self) -> Store: ...

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules that its sandboxes can run without starting an interpreter."""
        ...


async def open_host(backend: str, store: Store | Path, preload: Sequence[str] = ()) -> StoringHost:
    """A host over the layer store at `store`; close it, or use it with `async with`.

    `preload` names modules of ours for `run_apart`: loaded once, by a backend that can fork from there.
    """
    if backend == "local":
        from etude.sandbox.local.host import LocalHost

        return await LocalHost.open(store, preload)
    if backend == "plain":
        from etude.sandbox.plain.host import PlainHost

        return await PlainHost.open(store)
    if backend == "docker":
        from etude.sandbox.docker.host import DockerHost

        return await DockerHost.open(store)
    raise EtudeError(
        f"there is no sandbox backend {backend!r}; choose local, docker for tasks with a Dockerfile, or plain where "
        "there are neither namespaces nor an engine"
    )

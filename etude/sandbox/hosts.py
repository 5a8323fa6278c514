"""A sandbox backend by its name. No backend is a fallback for another: who wants one says so."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from etude.core.errors import EtudeError
from etude.sandbox.base import Host
from etude.sandbox.store.layers import Store

# Each is a folder beside this file; a backend in a file of one's own needs no line here.
BACKENDS: Final = {
    "local": "etude.sandbox.local.host:LocalHost",
    "docker": "etude.sandbox.docker.host:DockerHost",
    "plain": "etude.sandbox.plain.host:PlainHost",
}


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

    `backend` is a name of the table, or `./mine.py:MyHost` for a class derived from `BackendHost`. `preload` names
    modules of ours for `run_apart`: loaded once, by a backend that can fork from there. `remote:HOST:PORT,...` are
    sandbox hosts elsewhere (`etude sandbox serve`), `remote/plain:...` such without isolation; a host
    `kubernetes:NAME` means all pods of that name (`etude sandbox pods`), also those that come later.
    """
    kind, _, addresses = backend.partition(":")
    if kind in ("remote", "remote/plain"):
        # Only here: it needs numpy, and a host of ours opens where that is not installed.
        from etude.sandbox.remote.host import RemoteHost

        given = [address.strip() for address in addresses.split(",") if address.strip()]
        fleets = [address for address in given if address.startswith("kubernetes:")]
        hosts = [address for address in given if address not in fleets]
        return await RemoteHost.open(
            store, preload, addresses=hosts, isolated=kind == "remote", find=_pods_of(fleets) if fleets else None
        )
    host: StoringHost = await _host_class(backend).open(store, preload)
    return host


def _pods_of(fleets: Sequence[str]) -> Callable[[], Awaitable[list[str]]]:
    """Finds the sandbox hosts that are pods of these names."""
    from etude.sandbox.kubernetes.pods import addresses

    async def find() -> list[str]:
        return [address for fleet in fleets for address in await addresses(fleet)]

    return find


def backend_of(backend: str, sandbox_hosts: Sequence[str]) -> str:
    """The backend of a recipe: `run.sandbox`, on the machines of `cluster.sandbox_hosts` where there are any."""
    if not sandbox_hosts:
        return backend
    if backend not in ("local", "docker", "plain"):
        raise EtudeError(f"sandbox hosts have local, docker or plain sandboxes, not {backend!r}; set run.sandbox so")
    return f"remote{'/plain' if backend == 'plain' else ''}:{','.join(sandbox_hosts)}"


def _host_class(backend: str) -> Any:
    if ".py:" in backend:
        # Only here: it needs pydantic, and a host of ours opens where that is not installed.
        from etude.core.component import load_class

        return load_class("sandbox backend", backend, BACKENDS)
    if backend not in BACKENDS:
        raise EtudeError(
            f"there is no sandbox backend {backend!r}; choose local, docker for tasks with a Dockerfile, plain where "
            "there are neither namespaces nor an engine, remote:HOST:PORT for a sandbox host, or your own as "
            "./file.py:Class"
        )
    module, _, name = BACKENDS[backend].partition(":")
    return getattr(importlib.import_module(module), name)

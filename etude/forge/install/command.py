"""What `etude env install` does: opens the repository, the store and the host, shows progress, gives the facts."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

from etude.core.policy import Policy
from etude.core.progress import track
from etude.forge.install.checkout import open_repo
from etude.forge.install.install import install, repositories
from etude.forge.install.pip_settings import read_index
from etude.forge.install.result import InstallResult
from etude.sandbox.hosts import open_host
from etude.sandbox.store.layers import Store, default_store

_SHOWN_TO_A_MODEL = 12_000  # characters of a command's output


def install_repository(
    spec: str,
    store: Path | None,
    find_links: Path | None,
    suite_seconds: float,
    seconds: float,
    again: bool = False,
    model: AbstractAsyncContextManager[Policy] | None = None,
) -> dict[str, Any]:
    """The facts of one installation; `ok` is false, with a reason, for a repository that cannot be installed.

    A `model` acts in both stages, in place of the rules.
    """
    layers = Store(store or default_store())
    index = read_index(find_links)
    with track(f"installing {spec}", unit="steps") as bar:

        def note(text: str) -> None:
            bar.advance()
            bar.note(now=text)

        async def work() -> InstallResult:
            async with AsyncExitStack() as stack:
                host = await stack.enter_async_context(await open_host("local", layers))
                times: dict[str, Any] = {"suite_seconds": suite_seconds, "seconds": seconds}
                times |= {"again": again, "note": note}
                if model is None:
                    return await install(repo, host, index, **times)
                policy = await stack.enter_async_context(model)
                return await install(
                    repo, host, index, agents=lambda stage, attempt: policy, shown=_SHOWN_TO_A_MODEL, **times
                )

        note("getting its files")
        repo = open_repo(spec, repositories(layers), index=index)
        result = asyncio.run(work())
    return result.facts() | {"repo": repo.name, "version": repo.version}

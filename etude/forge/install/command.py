"""What `etude env install` does: opens the repository, the store and the host, shows progress, gives the facts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.core.policy import Policy
from etude.core.progress import track
from etude.forge.install.agent_rollout import NO_BOUND, Installers
from etude.forge.install.checkout import open_repo
from etude.forge.install.install import install, repositories
from etude.forge.install.pip_settings import read_index
from etude.forge.install.result import InstallResult
from etude.sandbox.hosts import open_host
from etude.sandbox.store.layers import Store, default_store
from etude.tokens.dialect import Dialect

_SHOWN_TO_A_MODEL = 12_000  # characters of a command's output
_CHARACTERS = 2  # of a token at least: a quarter of the context is room for one output


@dataclass(frozen=True)
class InstallModel:
    """A model that installs. A model of ours answers with tokens, so its dialect and its context are known."""

    start: Callable[[], Awaitable[Policy]]
    dialect: Dialect | None = None
    context_tokens: int = NO_BOUND

    def installers(self, policy: Policy) -> Installers:
        shown = min(_SHOWN_TO_A_MODEL, _CHARACTERS * self.context_tokens // 4)
        return Installers(lambda stage, number: policy, shown, self.dialect, self.context_tokens)


def install_repository(
    spec: str,
    store: Path | None,
    find_links: Path | None,
    suite_seconds: float,
    seconds: float,
    again: bool = False,
    model: InstallModel | None = None,
    rules_first: bool = False,
) -> dict[str, Any]:
    """The facts of one installation; `ok` is false, with a reason, for a repository that cannot be installed.

    A `model` acts in place of the rules; with `rules_first` only where they failed.
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
                if model is None or rules_first:
                    result = await install(repo, host, index, **times)
                    if result.ok or model is None:
                        return result
                    note(f"the rules failed: {result.reason}")
                policy = await model.start()
                if isinstance(policy, AbstractAsyncContextManager):  # a script holds nothing that has to be closed
                    await stack.enter_async_context(policy)
                return await install(repo, host, index, agents=model.installers(policy), **times)

        note("getting its files")
        repo = open_repo(spec, repositories(layers), index=index)
        result = asyncio.run(work())
    return result.facts() | {"repo": repo.name, "version": repo.version}

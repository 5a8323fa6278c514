"""What `etude tasks make` does: opens repository, environment, store and host, shows progress, gives the facts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

from etude.core.errors import EtudeError
from etude.core.progress import Bar, track
from etude.forge.install.checkout import open_repo
from etude.forge.install.install import install, repositories
from etude.forge.install.pip_settings import read_index
from etude.forge.origins.packaging.build_environment import open_building
from etude.forge.origins.table import find_origins
from etude.forge.pipeline.journal import Journal, JournalEntry
from etude.forge.pipeline.make import make_tasks
from etude.forge.steps.context import MakeRequest
from etude.sandbox.hosts import open_host
from etude.sandbox.store.layers import Store, default_store
from etude.tasks.format.config import PromptStyle
from etude.tasks.grading.grader import RUNNER


def make_from(
    spec: str,
    out: Path,
    count: int,
    seed: int,
    origins: Sequence[str],
    prompt_styles: Sequence[str],
    workers: int,
    store: Path | None,
    find_links: Path | None,
    *,
    tracker: bool = False,
) -> dict[str, Any]:
    """Makes tasks from a repository; installs it first where it is not. The facts of all that was tried so far."""
    if not origins or not prompt_styles:
        raise EtudeError("name at least one source of tasks (--from) and one prompt style (--registers)")
    found = find_origins(origins)
    request = MakeRequest(count, out, seed, tuple(origins), _known_styles(prompt_styles), workers, tracker)
    started = time.monotonic()
    layers = Store(store or default_store())
    index = read_index(find_links)
    with track(f"making tasks of {spec}", total=count, unit="tasks") as bar:
        bar.note(now="getting its files")
        repo = open_repo(spec, repositories(layers), index=index)
        tried = 0

        def on_entry(entry: JournalEntry) -> None:
            nonlocal tried
            tried += 1
            bar.note(tried=tried, last=entry.task or entry.reason)
            if entry.task:
                bar.advance()

        async def work() -> Journal:
            async with await open_host("local", layers, [RUNNER]) as host:
                installed = await install(repo, host, index, note=lambda text: bar.note(now=text))
                if installed.environment is None:
                    hint = f" (found out before: `etude env install {spec} --again` tries anew)"
                    why = installed.reason + (hint if installed.cached else "")
                    raise EtudeError(f"{spec} cannot be installed, so no task can be made of it: {why}")
                building = None
                if any(origin.needs_build for origin in found):
                    bar.note(now="installing what builds it")
                    building = await open_building(repo, installed.environment, host, index)
                note = partial(_note, bar)
                return await make_tasks(repo, installed.environment, host, request, on_entry, building, note)

        journal = asyncio.run(work())
    return facts(journal, out, time.monotonic() - started) | {"repo": repo.name, "version": repo.version}


def _note(bar: Bar, text: str) -> None:
    bar.note(now=text)


def facts(journal: Journal, out: Path, seconds: float) -> dict[str, Any]:
    """What the command answers."""
    return {
        "ok": bool(journal.tasks),
        "tried": journal.tried,
        "valid": len(journal.tasks),
        "rejected": journal.rejected,
        "left_out": journal.left_out,
        "ended": journal.stopped,
        "split": journal.splits,
        "seconds": round(seconds, 3),
        "spent": round(sum(entry.seconds for entry in journal.entries), 3),
        "tasks": [str(out / name) for name in journal.tasks],
    }


def _known_styles(names: Sequence[str]) -> tuple[PromptStyle, ...]:
    known = get_args(PromptStyle)
    for name in names:
        if name not in known:
            raise EtudeError(f"there is no prompt style of tasks called {name!r}; known: {', '.join(known)}")
    return cast(tuple[PromptStyle, ...], tuple(names))

"""What `etude tasks ladder` does: opens each package, makes its tasks, shows progress, gives the facts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.core.progress import track
from etude.forge.install.checkout import open_repo
from etude.forge.install.install import install, repositories
from etude.forge.install.pip_settings import read_index
from etude.forge.ladder.make import LadderRequest, make_ladder
from etude.forge.ladder.rungs import RUNGS
from etude.forge.pipeline.journal import Journal, JournalEntry
from etude.forge.pipeline.split import Side
from etude.forge.steps.context import MakeRequest, Opening
from etude.sandbox.hosts import StoringHost, open_host
from etude.sandbox.store.layers import Store, default_store
from etude.tasks.grading.grader import RUNNER


def make_ladders(
    specs: Sequence[str],
    out: Path,
    rungs: Sequence[int],
    count: int,
    held_out: Sequence[str],
    seed: int,
    workers: int,
    store: Path | None,
    find_links: Path | None,
) -> dict[str, Any]:
    """So many tasks of each rung from each package, in a folder each; a package that cannot be used is named."""
    if unknown := [rung for rung in rungs if rung not in RUNGS]:
        raise EtudeError(f"the ladder has rungs {', '.join(map(str, RUNGS))}, not {', '.join(map(str, unknown))}")
    names = [package_name(spec) for spec in specs]
    if len(set(names)) < len(names):
        raise EtudeError(
            "two of the packages have the same name, and each has a folder by its name: make one at a time"
        )
    if unknown_names := [name for name in held_out if name not in names]:
        raise EtudeError(f"--held-out names packages that are not among the given ones: {', '.join(unknown_names)}")
    started = time.monotonic()
    layers, index = Store(store or default_store()), read_index(find_links)
    journals: dict[str, Journal] = {}
    refused: dict[str, str] = {}
    made: Counter[str] = Counter()  # by package and rung
    with track("making the ladder", total=len(specs) * len(rungs) * count, unit="tasks") as bar:

        def on_entry(entry: JournalEntry) -> None:
            bar.note(last=entry.task or entry.reason)
            if entry.task:
                rung = entry.task.rpartition("-")[0]
                made[rung] += 1
                bar.advance(made[rung] <= count)  # candidates are tried a few at once, so a rung may get more

        async def package(spec: str, name: str, host: StoringHost) -> Journal:
            bar.note(now=f"getting {spec}")
            repo = await asyncio.to_thread(open_repo, spec, repositories(layers), index=index)
            installed = await install(repo, host, index, note=lambda text: bar.note(now=text))
            if installed.environment is None:
                raise EtudeError(f"it cannot be installed: {installed.reason}")
            request = MakeRequest(count, out / name, seed, workers=workers)
            request.out.mkdir(parents=True, exist_ok=True)
            opening = Opening(repo, installed.environment, host, request, note=lambda text: bar.note(now=text))
            side: Side = "held_out" if name in held_out else "train"
            return await make_ladder(await opening.plain(), LadderRequest(tuple(rungs), count, side), on_entry)

        async def work() -> None:
            async with await open_host("local", layers, [RUNNER]) as host:
                for spec, name in zip(specs, names, strict=True):
                    try:
                        journals[name] = await package(spec, name, host)
                    except EtudeError as error:  # the others are made all the same
                        refused[name] = str(error)

        asyncio.run(work())
    return _facts(journals, refused, held_out, out, time.monotonic() - started)


def package_name(spec: str) -> str:
    """What the folder of a package's tasks is called, and `--held-out` names: of a folder its own name."""
    path = Path(spec).expanduser()
    return path.resolve().name.removesuffix(".git") if path.is_dir() else spec.partition("==")[0]


def _facts(
    journals: dict[str, Journal], refused: dict[str, str], held_out: Sequence[str], out: Path, seconds: float
) -> dict[str, Any]:
    rejected: Counter[str] = Counter()
    for journal in journals.values():
        rejected.update(journal.rejected)
    packages = {
        name: {
            "split": "held_out" if name in held_out else "train",
            "tried": journal.tried,
            "rungs": dict(sorted(Counter(entry.level for entry in journal.entries if entry.task).items())),
        }
        for name, journal in journals.items()
    }
    valid = sum(len(journal.tasks) for journal in journals.values())
    return {
        "ok": bool(valid),
        "valid": valid,
        "tried": sum(journal.tried for journal in journals.values()),
        "packages": packages,
        "refused": refused,
        "rejected": dict(rejected.most_common()),
        "seconds": round(seconds, 3),
        "folder": str(out),
    }

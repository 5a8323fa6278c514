"""Chains of katas: several katas as one task, each in files of its own, so that a task is as long as one likes.

The pieces do not depend on each other: what is hard is to keep count of them over a context that does not hold all.
A task follows from the same things as a kata's, and the number of pieces. Knows no policy and no grader.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from pydantic import Field

from etude.core.errors import EtudeError
from etude.forge.katas.task_source import Katas, katas, task_numbers
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task

SPARE = 2  # katas drawn for each piece: some have a file of the same name as another
FAR = 10_000_000  # where more are drawn from when those do not do, so that no two tasks share a kata
HIDDEN = "test_held_out"  # the module of every kata's hidden tests


class KataChains:
    """A task source: `use = "kata_chains"`."""

    class Settings(Katas.Settings):
        pieces: int = Field(4, ge=2, description="katas in one task")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        Katas(settings)  # a wrong name is said at once

    def tasks(self, start: int = 0) -> Iterator[Task]:
        settings = self.settings
        asked = settings.model_dump(exclude={"pieces", "count"})
        for number in task_numbers(settings.count, start):
            window = settings.pieces * SPARE
            starts = (number * window, FAR + 2 * number * window)
            drawn = (katas(**asked, count=window * (1 + far), start=start) for far, start in enumerate(starts))
            yield chain(itertools.chain.from_iterable(drawn), settings.pieces, number)


def chain(found: Iterable[Task], pieces: int, number: int) -> Task:
    """The first of these katas that share no file, as one task."""
    chosen: list[Task] = []
    taken: set[str] = set()
    for task in found:
        own = {path for path in (*task.workspace, *_tests(task)) if not _shared(path)}
        if not own & taken:
            chosen.append(task)
            taken |= own
        if len(chosen) == pieces:
            break
    if len(chosen) < pieces:
        raise EtudeError(f"no {pieces} katas without a file in common were found; ask for fewer pieces")
    files: dict[str, bytes] = {}
    for place, task in enumerate(chosen):
        for path, data in task.files.items():
            if path.startswith((f"{WORKSPACE}/", f"{SOLUTION}/", f"{TESTS}/")):
                files[path.replace(f"{TESTS}/{HIDDEN}.py", f"{TESTS}/{_hidden(place)}.py")] = data
    first, every = chosen[0], [task.facts for task in chosen]
    whole = {path: data for path, data in first.files.items() if path not in files and HIDDEN not in path}
    facts = first.facts.model_copy(
        update={
            "family": " + ".join(facts.family for facts in every),
            "level": max(facts.level for facts in every),
            "fail_to_pass": [test for facts in every for test in facts.fail_to_pass],
            "pass_to_pass": [test for facts in every for test in facts.pass_to_pass],
            "held_out": [
                test.replace(HIDDEN, _hidden(place), 1) for place, facts in enumerate(every) for test in facts.held_out
            ],
            "allowed_paths": list(dict.fromkeys(path for facts in every for path in facts.allowed_paths)),
            "deleted": [name for facts in every for name in facts.deleted],
            "parameters": {},
        }
    )
    kinds = {path: first.files.kind(path) for path in first.files}
    return Task(
        f"chain-{facts.split}-{facts.seed}-{pieces}-{number:06d}",
        "\n".join(task.instruction for task in chosen),
        first.config,
        facts,
        Files(files | whole, {path: kind for path, kind in kinds.items() if kind != "file"}),
    )


def _tests(task: Task) -> list[str]:
    return [path.removeprefix(f"{TESTS}/") for path in task.files if path.startswith(f"{TESTS}/")]


def _shared(path: str) -> bool:
    """Files that every kata has, equal or of no consequence."""
    return path in ("README.md", "tests/__init__.py", "Dockerfile", "test.sh", f"{HIDDEN}.py")


def _hidden(place: int) -> str:
    return f"{HIDDEN}_{place}"

"""Trails of katas: one kata whose file is found only by reading others first, so that a task is long and its edit easy.

The instruction names a file that the function has left; the last line of each file says where it went, and the last
file has the hole. No step can be left out, since the names are drawn: what is hard is to come to the end of a trail
that one context does not hold. A task follows from the same things as a kata's, and the number of files before the
last. Knows no policy and no grader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import Field

from etude.core.errors import EtudeError
from etude.forge.katas.task_source import Katas, katas, task_numbers
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import WORKSPACE, Task

SPARE = 2  # katas drawn for each file: some have a package of the same name as another


class KataTrails:
    """A task source: `use = "kata_trails"`."""

    class Settings(Katas.Settings):
        hops: int = Field(5, ge=1, description="files to read before the one with the hole")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        Katas(settings)  # a wrong name is said at once

    def tasks(self, start: int = 0) -> Iterator[Task]:
        settings = self.settings
        asked = settings.model_dump(exclude={"hops", "count"})
        window = (settings.hops + 1) * SPARE
        for number in task_numbers(settings.count, start):
            yield trail(katas(**asked, count=window, start=number * window), settings.hops, number)


def trail(found: Iterable[Task], hops: int, number: int) -> Task:
    """The first of these katas, behind the finished files of so many others."""
    whole, *others = found
    target, _, name = whole.facts.deleted[0].partition(":")
    passed: dict[str, str] = {}  # path -> text
    packages = {target.partition("/")[0]}
    for other in others:
        path = other.facts.deleted[0].partition(":")[0]
        if len(passed) < hops and path.partition("/")[0] not in packages:
            packages.add(path.partition("/")[0])
            passed[path] = other.solution.text(path)
    if len(passed) < hops:
        raise EtudeError(f"no {hops} katas in packages of their own were found; ask for fewer hops")
    stations = [*passed, target]
    shown = {
        here: f"{text.rstrip()}\n\n# {name} went to {then}\n"
        for (here, text), then in zip(passed.items(), stations[1:], strict=True)
    }
    files = dict(whole.files.items()) | {f"{WORKSPACE}/{here}": text.encode() for here, text in shown.items()}
    facts = whole.facts.model_copy(update={"parameters": {**whole.facts.parameters, "trail": list(passed)}})
    kinds = {entry: whole.files.kind(entry) for entry in whole.files}
    return Task(
        f"trail-{facts.family}-{facts.split}-{facts.seed}-{hops}-{number:06d}",
        whole.instruction.replace(target, stations[0]),
        whole.config,
        facts,
        Files(files, {entry: kind for entry, kind in kinds.items() if kind != "file"}),
    )

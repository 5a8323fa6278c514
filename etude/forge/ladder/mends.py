"""Practice for the first rung: one wrong token in a short function of any Python file, thousands of them.

Real ladder tasks are dear: a package is installed, its suite recorded and run at each grading. Here the file is put
back as it was or it is not, and nothing runs. Files are the standard library's and those of installed packages, without
those that tasks are held out of. A task follows from the seed, its number and what is installed.
"""

from __future__ import annotations

import ast
import os
import random
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Final, Literal

import pydantic
from pydantic import Field

from etude.core.errors import EtudeError
from etude.corpus.document import is_skipped_folder
from etude.corpus.sources.folder import TEST_FOLDERS
from etude.forge.katas.task_source import CONFIG, DOCKERFILE, task_numbers
from etude.forge.ladder.rungs import is_short, search_bits
from etude.forge.languages.python.one_token import one_token_mistakes
from etude.forge.languages.python.source import Definition, Module
from etude.tasks.format.config import Facts, PromptStyle
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import SOLUTION, WORKSPACE, Task, solve_script

Place = Literal["stdlib", "packages"]
VERSION: Final = 1
FOLDERS: Final[dict[Place, str]] = {"stdlib": "stdlib", "packages": "purelib"}  # as sysconfig calls them
LARGEST: Final = 60_000  # bytes of a file: it is parsed whole for each task
TRIES: Final = 200  # files drawn before a number is given up; about every second one has a fit function

# {name} is the function, {path} its file, {first} and {last} its lines.
WORDS: Final[dict[PromptStyle, tuple[str, ...]]] = {
    "terse": (
        "one token in {name} is wrong ({path}:{first}-{last})",
        "fix {name} in {path}, lines {first}-{last}: one token is wrong",
    ),
    "plain": (
        "One token is wrong in `{name}` in `{path}`, lines {first} to {last}. Fix it.\n",
        "Since the last change `{name}` (`{path}`, lines {first}-{last}) is broken. The mistake is a single token. "
        "Mend it there.\n",
        "`{name}` in `{path}` (lines {first}-{last}) has a bug: one token is wrong. Fix it.\n",
    ),
    "detailed": (
        "# One token is wrong\n\nFile: `{path}`\nFunction: `{name}`, lines {first} to {last}\n\n"
        "Change that token and nothing else.\n",
    ),
}


@dataclass(frozen=True)
class Mend:
    """A function with one wrong token, and what it was."""

    path: str
    name: str
    kind: str  # the operator
    before: bytes  # the file with the mistake
    after: bytes  # as it was
    first: int  # lines of the function, with the mistake
    last: int
    bits: float

    def ask(self, style: PromptStyle, rng: random.Random) -> str:
        words = {"name": self.name, "path": self.path, "first": self.first, "last": self.last}
        return rng.choice(WORDS[style]).format(**words)

    def source(self) -> str:
        """The broken function."""
        return "".join(self.before.decode().splitlines(keepends=True)[self.first - 1 : self.last])

    def lines(self) -> tuple[str, str]:
        """The line that is wrong, and as it was, without their margins."""
        pairs = zip(self.before.decode().splitlines(), self.after.decode().splitlines(), strict=True)
        return next((old.strip(), new.strip()) for old, new in pairs if old != new)


def fit(module: Module) -> list[Definition]:
    """Short functions of a file that do something."""
    found = (each for each in module.definitions.values() if not isinstance(each.node, ast.ClassDef))
    return [each for each in found if each.deletable and is_short(module, each)]


def mend(module: Module, function: Definition, rng: random.Random) -> Mend | None:
    """One mistake of a function, operators drawn evenly; None where it has none that stays on its line."""
    kinds = defaultdict(list)
    for each in one_token_mistakes(module, function):
        kinds[each.kind].append(each)
    if not kinds:
        return None
    kind = rng.choice(sorted(kinds))
    before = module.edited([rng.choice(kinds[kind]).edit])
    broken = Module.read(module.path, before)
    there = broken.definitions.get(function.name) if broken is not None else None
    if broken is None or there is None or before == module.data or len(broken.lines) != len(module.lines):
        return None
    bits = round(search_bits(broken, there), 2)
    return Mend(module.path, function.name, kind, before, module.data, there.first, there.last, bits)


@cache
def installed(place: Place, without: tuple[str, ...]) -> list[tuple[Path, str]]:
    """(folder, path) of Python files of this machine that are no tests, sorted."""
    root = Path(sysconfig.get_path(FOLDERS[place]))
    left_out = [pattern for name in without for pattern in (f"{name}/*", f"{name}.py")] + list(TEST_FOLDERS)
    found: list[tuple[Path, str]] = []
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not is_skipped_folder(name))
        for name in files:
            path = (Path(folder) / name).relative_to(root).as_posix()
            if name.endswith(".py") and not any(fnmatch(path, pattern) for pattern in left_out):
                found.append((root, path))
    return sorted(found)


def read_module(root: Path, path: str) -> Module | None:
    """A file as the agent could be given it: plain, not large, in UTF-8 without odd line ends."""
    file = root / path
    try:
        if file.is_symlink() or file.stat().st_size > LARGEST:
            return None
        data = file.read_bytes()
    except OSError:
        return None
    return None if b"\r" in data or b"\f" in data else Module.read(path, data)


class Mends:
    """A task source: `use = "mends"`."""

    class Settings(pydantic.BaseModel, extra="forbid"):
        places: list[Place] = Field(["stdlib", "packages"], min_length=1, description="whose files are broken")
        without: list[str] = Field([], description="folders and modules that are left out: held-out packages")
        styles: list[PromptStyle] = Field(["terse", "plain", "detailed"], min_length=1, description="prompt styles")
        most_bits: float = Field(0.0, ge=0, description="functions with more to search are left out; 0 takes all")
        count: int = Field(0, ge=0, description="tasks; 0 never ends")
        seed: int = Field(0, ge=0, description="other seeds give other tasks")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.places = {place: installed(place, tuple(settings.without)) for place in settings.places}
        if empty := [place for place, files in self.places.items() if not files]:
            raise EtudeError(f"mends: this Python has no files in {', '.join(empty)}")

    def tasks(self, start: int = 0) -> Iterator[Task]:
        return (self.task(number) for number in task_numbers(self.settings.count, start))

    def task(self, number: int) -> Task:
        settings = self.settings
        rng = random.Random(f"mends/{settings.seed}/{number}")
        for _ in range(TRIES):
            drawn = self._draw(rng)
            if drawn is not None and not 0 < settings.most_bits < drawn.bits:
                return as_task(drawn, f"mend-{settings.seed}-{number:06d}", settings.styles, rng)
        raise EtudeError(f"mends: no function with a mistake was found in {TRIES} files; name other places")

    def _draw(self, rng: random.Random) -> Mend | None:
        module = read_module(*rng.choice(self.places[rng.choice(self.settings.places)]))
        functions = fit(module) if module is not None else []
        return mend(module, rng.choice(functions), rng) if module is not None and functions else None


def as_task(found: Mend, name: str, styles: Sequence[PromptStyle], rng: random.Random) -> Task:
    style = rng.choice(styles)
    facts = Facts(
        category="debugging",
        provenance=f"mends {VERSION}",
        family=found.kind,
        level=1,
        rung=1,
        bits=found.bits,
        split="train",
        prompt_style=style,
        restored=True,
        allowed_paths=[found.path],
        deleted=[f"{found.path}:{found.name}"],
    )
    files = {
        "environment/Dockerfile": DOCKERFILE,
        f"{WORKSPACE}/{found.path}": found.before,
        f"{SOLUTION}/{found.path}": found.after,
        "solution/solve.sh": solve_script("/app"),
    }
    return Task(name, found.ask(style, rng), CONFIG, facts, Files(files, {"solution/solve.sh": "executable"}))

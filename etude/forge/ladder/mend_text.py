"""Mended functions as a source of training text: what is wrong where, the function, and the line before and after.

The text teaches what a single wrong token looks like, in files that no held-out task comes from. One document for each
fit function of a file, some at most. Files are worked on by all cores and stay in their order.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from pydantic import Field

from etude.core import process
from etude.corpus.document import Document, Rejected, SourceSettings
from etude.corpus.sources.folder import InstalledSettings, Packages, Stdlib
from etude.forge.ladder.mends import LARGEST, WORDS, Mend, Place, fit, mend
from etude.forge.languages.python.source import Module
from etude.tasks.format.config import PromptStyle

AT_ONCE = 16  # files that a process is given together
STYLES: tuple[PromptStyle, ...] = tuple(WORDS)


class MendText:
    """A corpus source: `use = "mends"`."""

    class Settings(SourceSettings):
        places: list[Place] = Field(["stdlib", "packages"], description="whose files are broken")
        without: list[str] = Field([], description="folders and modules that are left out: held-out packages")
        count: int = Field(20_000, ge=1, description="documents")
        of_file: int = Field(4, ge=1, description="documents of one file at most")
        seed: int = Field(1000, ge=0, description="another one than that of the tasks to learn on")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name or "mends"

    def documents(self) -> Iterator[Document | Rejected]:
        settings = self.settings
        read = partial(texts, seed=settings.seed, most=settings.of_file, source=self.name)
        # Not forked: the process that builds a corpus may have threads.
        with multiprocessing.get_context("spawn").Pool(process.available_cores()) as pool:
            found = itertools.chain.from_iterable(pool.imap(read, self._files(), AT_ONCE))
            yield from itertools.islice(found, settings.count)

    def _files(self) -> Iterator[Document]:
        table = {"stdlib": Stdlib, "packages": Packages}
        for place in self.settings.places:
            files = table[place](InstalledSettings(without=self.settings.without)).documents()
            yield from (file for file in files if isinstance(file, Document) and len(file.text) <= LARGEST)


def texts(file: Document, seed: int, most: int, source: str) -> list[Document]:
    """The documents of one file."""
    module = Module.read(file.path, file.text.encode())
    if module is None or "\r" in file.text or "\f" in file.text:
        return []
    rng = random.Random(f"mend text/{seed}/{file.path}")
    functions = fit(module)
    made = (mend(module, function, rng) for function in rng.sample(functions, len(functions)))
    found = itertools.islice((each for each in made if each is not None), most)
    return [replace(file, path=f"{file.path}.{each.name}.md", text=text_of(each, rng), source=source) for each in found]


def text_of(found: Mend, rng: random.Random) -> str:
    old, new = found.lines()
    return f"{found.ask(rng.choice(STYLES), rng).strip()}\n\n{found.source()}\nold: {old}\nnew: {new}\n"

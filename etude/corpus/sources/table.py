"""The table of built-in sources, and a recipe's list of sources turned into components.

Adding a source touches no file here: a recipe names the user's own as `./mine.py:Mine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core import component
from etude.core.errors import EtudeError
from etude.corpus.document import Source, SourceSettings

SOURCES = {
    "stdlib": "etude.corpus.sources.folder:Stdlib",
    "packages": "etude.corpus.sources.folder:Packages",
    "folder": "etude.corpus.sources.folder:Folder",
    "archive": "etude.corpus.sources.archive:Archive",
    "git": "etude.corpus.sources.git:Git",
    "commits": "etude.corpus.sources.commits:Commits",
    "records": "etude.corpus.sources.records:Records",
    "katas": component.UPWARD["corpus source katas"],
    "mends": component.UPWARD["corpus source mends"],
}


def open_sources(specs: Sequence[Mapping[str, Any]]) -> list[Source]:
    """Components from tables such as `{"use": "folder", "path": "~/code", "weight": 2}`."""
    if not specs:
        raise EtudeError("corpus.sources is empty: name at least one, such as {use = 'stdlib'}")
    sources: list[Source] = []
    for number, spec in enumerate(specs):
        source = component.build("corpus source", spec, SOURCES, f"corpus.sources.{number}")
        if not isinstance(getattr(source, "settings", None), SourceSettings):
            raise EtudeError(f"corpus source {spec['use']} must keep its settings, a SourceSettings, as self.settings")
        sources.append(source)
    check_names(sources)
    return sources


def check_names(sources: Sequence[Source]) -> None:
    """Counts, shards and weights go by name, so names must differ."""
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise EtudeError(f"two corpus sources are called {name!r}: give one of them another `name`")

"""The registry of origins: every folder here that has a module `origin`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from typing import Any

from etude.core.errors import EtudeError
from etude.forge import origins as folder
from etude.forge.origins.base import Origin

AnyOrigin = Origin[Any, Any]


def all_origins() -> dict[str, AnyOrigin]:
    """By name, in the order in which they first propose."""
    names = [each.name for each in pkgutil.iter_modules(folder.__path__) if each.ispkg]
    found: list[AnyOrigin] = [importlib.import_module(f"{folder.__name__}.{name}.origin").ORIGIN for name in names]
    return {each.name: each for each in sorted(found, key=lambda each: (each.turns, each.name))}


def find_origins(names: Iterable[str]) -> list[AnyOrigin]:
    """Those with these names or labels."""
    known = all_origins()
    by_label = {each.label: each for each in known.values()}
    found = []
    for name in names:
        origin = known.get(name) or by_label.get(name)
        if origin is None:
            raise EtudeError(f"there is no source of tasks called {name!r}; known: {', '.join(known)}")
        found.append(origin)
    return found


def turns(origins: Iterable[AnyOrigin]) -> list[AnyOrigin]:
    """Who proposes next, again and again: some have several turns in a round."""
    places = [(turn, origin.name, origin) for origin in origins for turn in origin.turns]
    return [origin for _, _, origin in sorted(places, key=lambda place: place[:2])]

"""BrokenPackaging that somebody broke: entries of the configuration that are gone, or lead nowhere.

Proposes which entries go or change, from the texts alone: what a built distribution then lacks is found by building it
(`prove`). Areas are scripts, extras, dependencies, the Python that is asked for, contents, version and metadata; some
candidates are about one, some about several. Runs nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.round_robin import in_turns
from etude.tasks.format.file_tree import Files
from etude.tasks.kinds.packaging.config_entries import FILES, TARGET, ConfigEntry, entries, exchanged, without

Area = Literal["scripts", "extras", "dependencies", "python", "contents", "version", "metadata"]
AREAS: Final[tuple[Area, ...]] = ("scripts", "extras", "contents", "version", "dependencies", "metadata", "python")
MIXED: Final = 8  # candidates about several areas
LISTED: Final = 4  # about several fields of the metadata
WORD: Final = re.compile(r"[A-Za-z_][\w-]*")

# What a key of the configuration is about, wherever it stands.
KEYS: Final[dict[str, Area]] = {
    **dict.fromkeys(("scripts", "gui-scripts", "entry-points", "entry_points", "plugins"), "scripts"),
    **dict.fromkeys(("optional-dependencies", "extras", "extras_require"), "extras"),
    **dict.fromkeys(("dependencies", "install_requires"), "dependencies"),
    **dict.fromkeys(("requires-python", "python_requires"), "python"),
    **dict.fromkeys(("version", "dynamic"), "version"),
    **dict.fromkeys(("description", "readme", "keywords", "classifiers", "authors", "maintainers", "urls"), "metadata"),
    **dict.fromkeys(("license", "license-files", "url", "author", "author_email", "long_description"), "metadata"),
    **dict.fromkeys(("maintainer", "maintainer_email", "project_urls", "long_description_content_type"), "metadata"),
    **dict.fromkeys(("packages", "package-data", "package_data", "package-dir", "package_dir", "find"), "contents"),
    **dict.fromkeys(("py-modules", "py_modules", "include-package-data", "include_package_data"), "contents"),
    **dict.fromkeys(("exclude-package-data", "exclude_package_data", "data_files", "data-files"), "contents"),
    **dict.fromkeys(("build", "module", "include", "exclude", "sources", "force-include"), "contents"),
}


@dataclass(frozen=True)
class BrokenPackaging(Candidate):
    """A project whose packaging is broken in these areas; `changes` are of its configuration."""

    areas: tuple[Area, ...] = ()


def area_of(entry: ConfigEntry) -> Area | None:
    """By the outermost part of its name that means something."""
    name = [*entry.table, entry.key]
    if entry.path == "setup.cfg":
        name = [part for each in name for part in each.split(".")]
    own = name[1:] if name[0] != "tool" else name[2:]
    return next((KEYS[part] for part in own if part in KEYS), None)


def broken_packagings(files: Files, rng: random.Random) -> Iterator[BrokenPackaging]:
    """In the order in which they should be tried: the areas in turns, then several at once."""
    texts = {path: text for path in FILES if (text := _text(files, path)) is not None}
    known = [(area, each) for path, text in texts.items() for each in entries(path, text) if (area := area_of(each))]
    streams = [_of_area(texts, area, [each for own, each in known if own == area], rng) for area in AREAS]
    tried: set[str] = set()
    for found in in_turns([*streams, _mixed(texts, known, rng)]):
        if found.key not in tried:
            tried.add(found.key)
            yield found


def _text(files: Files, path: str) -> str | None:
    if path not in files or files.kind(path) == "link":
        return None
    try:
        text = files[path].decode()
    except UnicodeDecodeError:
        return None
    return text if "\r" not in text else None


def _of_area(
    texts: dict[str, str], area: Area, own: Sequence[ConfigEntry], rng: random.Random
) -> Iterator[BrokenPackaging]:
    if area == "python" or not own:
        return
    if area == "metadata":
        for _ in range(LISTED if len(own) >= 3 else 0):
            yield _lost(texts, rng.sample(own, rng.randint(3, min(5, len(own)))))
        return
    ways: list[BrokenPackaging | None] = [_lost(texts, [each]) for each in own]
    tables = {each.table for each in own}
    ways += [_lost(texts, [each for each in own if each.table == table]) for table in sorted(tables)]
    ways += [_wrong(texts, each, area, rng) for each in own]
    yield from rng.sample([way for way in ways if way is not None], sum(way is not None for way in ways))


def _mixed(
    texts: dict[str, str], known: Sequence[tuple[Area, ConfigEntry]], rng: random.Random
) -> Iterator[BrokenPackaging]:
    areas = sorted({area for area, _ in known})
    for _ in range(MIXED if len(areas) > 1 else 0):
        chosen = rng.sample(areas, rng.randint(2, min(3, len(areas))))
        gone = [rng.choice([each for own, each in known if own == area]) for area in chosen]
        yield _lost(texts, gone)


def _lost(texts: dict[str, str], gone: Sequence[ConfigEntry]) -> BrokenPackaging:
    changes: dict[str, bytes | None] = {}
    for path in sorted({each.path for each in gone}):
        changes[path] = without(texts[path], [each for each in gone if each.path == path]).encode()
    areas = tuple(dict.fromkeys(area for each in gone if (area := area_of(each))))
    return BrokenPackaging("devops", _how(areas, "lost"), changes, _pieces(gone), lines=_lines(gone), areas=areas)


def _wrong(texts: dict[str, str], entry: ConfigEntry, area: Area, rng: random.Random) -> BrokenPackaging | None:
    """One word of an entry is another: a target that does not exist, a folder that is not there, a name misspelt."""
    words = _words(entry.value, area) or _words(entry.text.partition("=")[2], area)
    if not words:
        return None
    old = rng.choice(words)
    text = exchanged(texts[entry.path], entry, old, _misspelt(old, area, rng))
    if text is None:
        return None
    made = _lost(texts, [entry])
    pieces = tuple(replace(piece, gone=False) for piece in made.pieces)
    return replace(made, how=_how((area,), "wrong"), changes={entry.path: text.encode()}, pieces=pieces, lines=1)


def _words(value: Any, area: Area) -> list[str]:
    """Words of a value that can be exchanged."""
    if isinstance(value, dict):
        return [word for each in value.values() for word in _words(each, area)]
    if isinstance(value, list | tuple):
        return [word for each in value for word in _words(each, area)]
    if not isinstance(value, str):
        return []
    if area == "scripts":
        return TARGET.findall("".join(value.split()))
    if area in ("extras", "dependencies"):
        found = WORD.match(value.strip())
        return [found[0]] if found and len(found[0]) > 3 else []
    return [word for word in WORD.findall(value) if len(word) > 3 and word not in ("attr", "file", "find")]


def _misspelt(word: str, area: Area, rng: random.Random) -> str:
    if area == "scripts":
        module, _, attribute = word.partition(":")
        if "." in module and rng.random() < 0.5:
            return f"{module.rpartition('.')[0]}.commands:{attribute}"
        return f"{module}:{'run' if attribute != 'run' else 'start'}_{attribute.rpartition('.')[2].strip('_')}"
    if area in ("extras", "dependencies"):
        return f"{word}-core"
    at = rng.randrange(1, len(word) - 1)
    return word[:at] + word[at + 1 :]


def _how(areas: Sequence[Area], what: str) -> str:
    return f"{what} {' and '.join(areas)}"


def _pieces(gone: Sequence[ConfigEntry]) -> tuple[RemovedCode, ...]:
    return tuple(
        RemovedCode(each.path, each.name, each.text, lines=each.text.count("\n") + 1, gone=True) for each in gone
    )


def _lines(gone: Sequence[ConfigEntry]) -> int:
    return sum(each.text.rstrip().count("\n") + 1 for each in gone)

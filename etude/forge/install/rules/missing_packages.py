"""What the words of a failed run ask for: modules, fixtures, options and plugins that are missing, by distribution.

A table says where the name that is imported is not the name that is installed, and which well-known ones are called the
same; of all others only those that the project itself names are asked for.
Reads text and knows nothing else.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from etude.forge.install.project.requirements import canonical

_MODULE = re.compile(r"No module named ['\"]?([A-Za-z_][\w.]*)")
_SKIPPED = re.compile(r"could not import ['\"]([A-Za-z_][\w.]*)['\"]")
_FIXTURE = re.compile(r"fixture '(\w+)' not found")
_ARGUMENTS = re.compile(r"unrecognized arguments: (.*)")
_PLUGINS = re.compile(r"Missing required plugins: (.*)")
_SETTING = re.compile(r"Unknown config option: (\w+)")
_MARK = re.compile(r"['\"]?(?:Unknown pytest\.mark\.|)(\w+)['\"]? (?:not found in `markers`|- is this a typo)")
_DISTRIBUTION = re.compile(
    r"(?:PackageNotFoundError: No package metadata was found for|DistributionNotFound: The ')\s*([\w.-]+)"
)
_COMMAND = re.compile(
    r"_execute_child\b.*\n(?:(?!E\s).*\n){0,3}E\s+FileNotFoundError: \[Errno 2\] No such file or directory: '([\w+-]+)'"
)
_ASYNC = re.compile(
    r"async def functions are not natively supported|PytestUnhandledCoroutineWarning|requested an async fixture"
)
_ZONE = re.compile(r"ZoneInfoNotFoundError")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


@cache
def _distributions() -> dict[str, dict[str, Any]]:
    """What is called otherwise than the distribution that brings it: by kind, name -> distribution."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def requirements_of(text: str, own: Collection[str] = (), named: Collection[str] = ()) -> list[str]:
    """The distributions that an output asks for, `own` modules left out: those are the repository's. A module whose
    distribution neither the project (`named`) nor our table knows asks for nothing: anybody could own the name."""
    known = _distributions()
    modules, options = known["modules"], known["options"]
    found: list[str] = []
    for module in _missing_modules(text, own):
        top = module.split(".")[0]
        if (said := modules.get(module, modules.get(top))) is not None:
            found.append(said)
        elif canonical(top) in named or canonical(top) in _same_name():
            found.append(top)
        else:
            # The project's own name for it: `google-auth` for `google`, `pytest-foo` for `pytest_foo`.
            found += [each for each in sorted(named) if each == canonical(module)]
    for kind, pattern in (("fixtures", _FIXTURE), ("settings", _SETTING), ("marks", _MARK)):
        found += [known[kind][name] for name in pattern.findall(text) if name in known[kind]]
    for words in _ARGUMENTS.findall(text):
        for word in words.split():
            found += [options[option] for option in options if _begins(word, option)]
    for words in _PLUGINS.findall(text):
        found += [word.strip() for word in words.split(",")]
    found += [name for name in _DISTRIBUTION.findall(text) if canonical(name) not in {canonical(each) for each in own}]
    if _ASYNC.search(text):
        found.append("pytest-asyncio")
    if _ZONE.search(text):
        found.append("tzdata")
    unique = {canonical(re.split(r"[<>=\[;]", each)[0]): each for each in found if each}
    for alike in known["one_of"].values():
        for name in [name for name in alike if name in unique][1:]:
            del unique[name]
    return [each for name, each in unique.items() if _NAME.fullmatch(name)]


def unknown_modules(text: str, own: Collection[str] = (), named: Collection[str] = ()) -> list[str]:
    """Modules that are missing and that nobody says how to install."""
    known = _distributions()["modules"]
    tops = dict.fromkeys(module.split(".")[0] for module in _missing_modules(text, own) if module not in known)
    return [top for top in tops if top not in known and canonical(top) not in _same_name().union(named)]


def _missing_modules(text: str, own: Collection[str]) -> list[str]:
    found = [*_MODULE.findall(text), *_SKIPPED.findall(text)]
    there = {*own, *(sys.stdlib_module_names - {"distutils"})}
    return [module for module in found if module.split(".")[0] not in there]


@cache
def _same_name() -> frozenset[str]:
    """Distributions of which we know that they bring the module of their name."""
    return frozenset(canonical(name) for name in _distributions()["same_name"]["distributions"])


def commands_of(text: str) -> list[str]:
    """Programs that tests start and that are not there."""
    return list(dict.fromkeys(_COMMAND.findall(text)))


def _begins(word: str, option: str) -> bool:
    if option.startswith("--"):
        return word == option or word.startswith((f"{option}=", f"{option}-"))
    return re.fullmatch(rf"{option}(\d+|auto)?", word) is not None


def last_error(text: str) -> str:
    """The line that says why, of all that pip or a build printed: an exception's, or else the last complaint."""
    lines = [line.strip(" |\u2502\u2570\u2500>") for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b: \S", line)]
    said = [line for line in lines if line.startswith("ERROR: ")]
    return ascii((raised or said or lines or ["nothing was said"])[-1])[1:-1][:300]

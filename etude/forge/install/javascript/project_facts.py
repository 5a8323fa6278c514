"""What a JavaScript repository says about itself, read as text: its package.json, its tests, their framework.

A test file is one that takes a framework and calls it; which files those are is a proposal, and a run of them decides.
Runs nothing and knows no sandbox.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from etude.forge.install.javascript.npm_settings import NAME
from etude.forge.install.result import InstallFailed
from etude.tasks.format.file_tree import Files
from etude.tasks.javascript.parsing import ENDINGS
from etude.tasks.javascript.test_source import required_in

Framework = Literal["node", "tape", "mocha"]
Developing = Literal["taken", "loose", "all"]  # which of the packages that are named for developing

PYTHON_FILES: Final = ("pyproject.toml", "setup.py", "setup.cfg")
TEST_FOLDERS: Final = frozenset(("test", "tests", "__tests__", "spec", "specs"))
TEST_FILE: Final = re.compile(r"(^|/)(test|tests|spec|[^/]+[.-](test|spec)|test[.-][^/]+)\.[cm]?js$")
# Folders of what was built, or is no part of what the project does.
ASIDE: Final = frozenset(
    (
        *("dist", "build", "out", "umd", "bundle", "vendor", "coverage", "node_modules", "bower_components"),
        *("doc", "docs", "example", "examples", "bench", "benchmark", "benchmarks", "perf", "scripts", "tools", "demo"),
    )
)
ASIDE_FILES: Final = re.compile(
    r"(^|/)(\.[^/]*|[^/]*\.min\.[cm]?js|[^/]*\.config\.[cm]?js|(gulp|grunt|rollup|webpack|karma)[^/]*\.[cm]?js)$",
    re.IGNORECASE,
)
OTHERS: Final = ("jest", "vitest", "ava", "tap", "jasmine", "uvu", "qunit", "lab", "@hapi/lab", "nodeunit", "vows")
_LARGEST: Final = 2 << 20
_TABLES: Final = ("dependencies", "devDependencies", "optionalDependencies", "peerDependencies", "scripts")
_MOCHA = re.compile(r"^\s*(?:describe|suite|context|it)(?:\.only|\.skip)?\s*\(", re.MULTILINE)
# Of mocha's options those that decide what tests find; reporters, specs and watching are ours.
_MOCHA_OPTIONS: Final = {"require": "--require", "r": "--require", "ui": "--ui", "u": "--ui", "timeout": "--timeout"}
_MOCHA_OPTIONS_TOO: Final = {"t": "--timeout", "slow": "--slow", "s": "--slow", "import": "--import"}


@dataclass(frozen=True)
class Project:
    """A repository as far as installing it goes."""

    name: str  # what its package.json calls it, where that is a name; or nothing
    package: Mapping[str, Any] = field(repr=False)
    framework: Framework
    tests: tuple[str, ...]  # files that are started
    options: tuple[str, ...]
    test_packages: tuple[str, ...]  # packages that the tests take, of those that package.json names for developing


def is_script_project(tree: Path) -> bool:
    """Whether a repository is JavaScript's: it has a package.json, and nothing that says Python."""
    return (tree / "package.json").is_file() and not any((tree / name).exists() for name in PYTHON_FILES)


def is_test(path: str) -> bool:
    """Whether a file belongs to the tests, by its place."""
    return TEST_FILE.search(path) is not None or not TEST_FOLDERS.isdisjoint(path.split("/")[:-1])


def is_code(path: str) -> bool:
    """Whether a file is code of the project itself, by its place."""
    folders = path.split("/")[:-1]
    aside = not ASIDE.isdisjoint(folders) or any(folder.startswith(".") for folder in folders)
    return path.endswith(ENDINGS) and not is_test(path) and not aside and ASIDE_FILES.search(path) is None


def read_project(tree: Path) -> Project:
    """Raises `InstallFailed` where nothing could come of installing it."""
    files = Files.scan(tree)
    package = _package(files.text("package.json"))
    texts = {
        path: files.text(path)
        for path in files
        if path.endswith(ENDINGS) and files.kind(path) != "link" and files.size(path) <= _LARGEST
        if is_test(path) and ASIDE.isdisjoint(path.split("/")[:-1])
    }
    declared = _declared(package)
    found = {path: kind for path, text in texts.items() if (kind := _framework(text, declared)) is not None}
    if not found:
        raise InstallFailed(_why_none(texts, declared), final=True)
    framework = Counter(found.values()).most_common(1)[0][0]
    tests = tuple(sorted(path for path, name in found.items() if name == framework))
    options = tuple(_mocha_options(package, files)) if framework == "mocha" else ()
    taken = {_package_of(each) for text in texts.values() for each in required_in(text)}
    taken |= {_package_of(each) for each in options if not each.startswith("-")} | {framework}
    test_packages = tuple(sorted(name for name in package["devDependencies"] if name in taken))
    return Project(package["name"], package, framework, tests, options, test_packages)


def manifest(project: Project, which: Developing) -> dict[str, Any]:
    """The package.json to install: what it depends on and what its tests need; or all that it names."""
    package = project.package
    developing = package["devDependencies"]
    kept = {name: package[name] for name in _TABLES if package[name] and name not in ("devDependencies", "scripts")}
    chosen = developing if which == "all" else {name: developing[name] for name in project.test_packages}
    if which == "loose":
        chosen = dict.fromkeys(chosen, "*")
    if project.framework != "node" and project.framework not in {**chosen, **package["dependencies"]}:
        chosen = {**chosen, project.framework: "*"}
    return {"name": "workspace", "version": "0.0.0", "private": True, **kept, "devDependencies": chosen}


def _package(said: str) -> dict[str, Any]:
    """What a package.json says, its tables as tables of texts."""
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InstallFailed("its package.json cannot be read", final=True)
    for key in _TABLES:
        table = found.get(key)
        pairs = table.items() if isinstance(table, dict) else ()
        found[key] = {name: value for name, value in pairs if isinstance(value, str)}
    name = found.get("name")
    return found | {"name": name if isinstance(name, str) and NAME.fullmatch(name) else ""}


def _declared(package: Mapping[str, Any]) -> set[str]:
    words = re.findall(r"[\w@/.-]+", " ".join(package["scripts"].values()))
    return {*package["devDependencies"], *package["dependencies"], *words}


def _framework(text: str, declared: set[str]) -> Framework | None:
    """What a test file is written for."""
    required = required_in(text)
    if required & {"node:test", "test"}:
        return "node"
    if "tape" in required:
        return "tape"
    others = required & set(OTHERS)
    if "mocha" in declared and not others and _MOCHA.search(text):
        return "mocha"
    return None


def _why_none(texts: Mapping[str, str], declared: set[str]) -> str:
    if not texts:
        return "it holds no tests"
    others = [name for name in OTHERS if name in declared]
    if others:
        return f"its tests are written for {others[0]}; node:test, tape and mocha are known"
    return "its tests are written for none of node:test, tape and mocha"


def _mocha_options(package: Mapping[str, Any], files: Files) -> Iterator[str]:
    """What a repository tells mocha, in its scripts or a file of its own."""
    given: dict[str, Any] = {}
    for path in (".mocharc.json", ".mocharc"):
        if path in files:
            try:
                found = json.loads(files.text(path))
                given |= found if isinstance(found, dict) else {}
            except ValueError:
                continue
    own = package.get("mocha")
    given |= own if isinstance(own, dict) else {}
    known = {**_MOCHA_OPTIONS, **_MOCHA_OPTIONS_TOO}
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            if name in known and isinstance(each, str | int) and not isinstance(each, bool):
                yield from (known[name], str(each))
    lines = list(package["scripts"].values())
    lines += [files.text("test/mocha.opts")] if "test/mocha.opts" in files else []
    line = next((each for each in lines if re.search(r"\bmocha\b|^--", each)), "")
    try:
        words = shlex.split(line.replace("\n", " "))
    except ValueError:
        return
    for at, each in enumerate(words):
        name, joined, value = each.lstrip("-").partition("=")
        if each.startswith("-") and name in known:
            value = value if joined else words[at + 1] if at + 1 < len(words) else ""
            if value and not value.startswith("-"):
                yield from (known[name], value)


def _package_of(spelled: str) -> str:
    """The package that a module is taken from: `@a/b` of `@a/b/c`, `a` of `a/b`."""
    parts = spelled.split("/")
    return "/".join(parts[:2]) if spelled.startswith("@") else parts[0]

"""What a project's distribution is like, found by building it: the first half of every packaging test.

Copied as text to the top of a task's test file, and run as a program where a task is made (it prints the facts as
JSON). The project, a copy of it, is built by its own backend, offline, in a process of its own; the wheel is unpacked,
and what it holds is imported and started from there alone. Needs `packaging`, which pytest brings, and nothing of ours.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from configparser import ConfigParser
from email.message import Message
from email.parser import Parser
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

SECONDS = 120
CONFIGURATION = ("pyproject.toml", "setup.py", "setup.cfg")
FOLDERS = Path(__file__).resolve().parents
ROOT = [folder for folder in FOLDERS if any((folder / name).is_file() for name in CONFIGURATION)][-1]
BUILD = """
import importlib, os, sys, tomllib
system = {}
if os.path.exists("pyproject.toml"):
    with open("pyproject.toml", "rb") as file:
        system = tomllib.load(file).get("build-system", {})
sys.path[:0] = [os.path.abspath(path) for path in system.get("backend-path", [])]
module, _, inner = system.get("build-backend", "setuptools.build_meta:__legacy__").partition(":")
backend = importlib.import_module(module)
for name in filter(None, inner.split(".")):
    backend = getattr(backend, name)
backend.build_wheel(sys.argv[1])
"""
# The wheel's modules and what is installed; never the project's own folder.
LOAD = """
import importlib, sys
wheel, root, module, attributes, *words = sys.argv[1:]
sys.path[:] = [wheel, *(path for path in sys.path if path and path != root and not path.startswith(root + "/"))]
found = importlib.import_module(module)
if not str(found.__file__ or [*found.__path__][0]).startswith(wheel):
    sys.exit(f"{module} is not in the wheel")
for name in filter(None, attributes.split(".")):
    found = getattr(found, name)
if words:
    sys.argv = words
    sys.exit(found())
print(getattr(found, "__module__", module), getattr(found, "__qualname__", attributes), sep=":")
"""


def wheel(path: str = "", old: str = "", new: str = "") -> Path:
    """The unpacked wheel of the project, or of one in whose file `path` a text is another."""
    place, trouble = _built(path, old, new)
    assert not trouble, "the project cannot be built: " + trouble
    return place


@cache
def _built(path: str, old: str, new: str) -> tuple[Path, str]:
    """Where it is, and why it is not there."""
    place = Path(tempfile.mkdtemp())
    left = shutil.ignore_patterns(Path(__file__).name, "__pycache__")
    shutil.copytree(ROOT, place / "project", symlinks=True, ignore=left)
    for folder, _, _ in os.walk(place / "project"):
        Path(folder).chmod(0o755)
    if path:
        source = place / "project" / path
        text = source.read_text()
        if old not in text:
            return place, f"{path} says nothing about {old}"
        source.chmod(0o644)
        source.write_text(text.replace(old, new))
    (place / "out").mkdir()
    done = _run([sys.executable, "-P", "-c", BUILD, str(place / "out")], place / "project")
    found = sorted((place / "out").glob("*.whl"))
    if done.returncode != 0 or not found:
        return place, _last(done)
    with zipfile.ZipFile(found[0]) as archive:
        archive.extractall(place / "wheel")
    (place / "name").write_text(found[0].name)
    return place / "wheel", ""


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS,
    )


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with {done.returncode}"


def file_name() -> str:
    """What the wheel's file is called."""
    return (wheel().parent / "name").read_text()


def _information(place: Path) -> Path:
    return next(place.glob("*.dist-info"))


@cache
def metadata() -> Message:
    return Parser().parsestr((_information(wheel()) / "METADATA").read_text("utf-8"))


def field(name: str) -> str | None:
    """One field of the metadata."""
    found = metadata()[name]
    return None if found is None else str(found)


def fields(name: str) -> list[str]:
    """All fields of one name."""
    return sorted(str(each) for each in metadata().get_all(name) or [])


def first_line() -> str:
    """Of the long description."""
    lines = [line.strip() for line in str(metadata().get_payload()).splitlines() if line.strip()]
    return lines[0] if lines else ""


def packed() -> list[str]:
    """The files of the wheel that get installed."""
    return sorted(path for path in _all_files() if ".dist-info/" not in path)


def _all_files() -> list[str]:
    return [str(path.relative_to(wheel())) for path in wheel().rglob("*") if path.is_file()]


def among(*paths: str) -> list[str]:
    """Those of these files that the wheel has."""
    return sorted(set(paths) & set(packed()))


def tops() -> list[str]:
    """What can be imported once the wheel is installed."""
    first = {path.split("/")[0] for path in packed() if path.endswith((".py", ".pyi", ".typed", ".so"))}
    return sorted(name.removesuffix(".py") for name in first if not name.endswith(".data"))


@cache
def entry_points() -> dict[str, dict[str, str]]:
    """Group, name, and what it leads to."""
    file = _information(wheel()) / "entry_points.txt"
    read = ConfigParser(delimiters=("=",), interpolation=None)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read_string(file.read_text("utf-8") if file.exists() else "")
    return {group: {name: "".join(value.split()) for name, value in read.items(group)} for group in read.sections()}


def entry_point(group: str, name: str) -> str | None:
    return entry_points().get(group, {}).get(name)


def loaded(group: str, name: str) -> str:
    """Module and name of the object that an entry point leads to, imported from the wheel."""
    target = entry_point(group, name)
    return imported(*target.partition("[")[0].split(":")) if target else "there is no such entry point"


def imported(module: str, attributes: str = "") -> str:
    """Module and name of what is found there; of a module its own name."""
    done = _run([sys.executable, "-c", LOAD, str(wheel()), str(ROOT), module, attributes], wheel().parent)
    return done.stdout.strip() if done.returncode == 0 else _last(done)


def helped(name: str) -> list[object]:
    """How a command with --help ends, and the first line that it prints."""
    target = entry_point("console_scripts", name)
    if not target:
        return ["there is no such command"]
    module, _, attributes = target.partition("[")[0].partition(":")
    words = [str(wheel()), str(ROOT), module, attributes, name, "--help"]
    done = _run([sys.executable, "-c", LOAD, *words], wheel().parent)
    lines = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
    return [done.returncode, lines[0] if lines else ""]


def extras() -> list[str]:
    return fields("Provides-Extra")


@cache
def requirements() -> dict[str, list[str]]:
    """What each extra brings, "" what is always there: normalised, with markers but for the extra's own."""
    found: dict[str, list[str]] = {"": [], **{extra: [] for extra in extras()}}
    for line in fields("Requires-Dist"):
        each = Requirement(line)
        marker = str(each.marker) if each.marker is not None else ""
        named = re.search(r'extra == "([^"]*)"', marker)
        marker = re.sub(r'( and )?\(?extra == "[^"]*"\)?', "", marker).strip()
        marker = marker.removeprefix("and ").strip()
        each.marker = None
        extra = named[1] if named else ""
        found.setdefault(extra, []).append(f"{each}; {marker}" if marker else str(each))
    return {extra: sorted(lines) for extra, lines in found.items()}


def brings(extra: str = "") -> list[str] | None:
    """The requirements of an extra, or of no extra; None where there is no such extra."""
    return requirements().get(extra)


def names(extra: str = "") -> list[str]:
    """The same, names only."""
    return sorted(Requirement(line).name.lower() for line in brings(extra) or [])


def bounds(extra: str = "") -> dict[str, str]:
    """The versions that are asked for, by name."""
    return {Requirement(line).name.lower(): str(Requirement(line).specifier) for line in brings(extra) or []}


def admits(version: str) -> bool:
    """Whether pip would install it under this version of Python."""
    return SpecifierSet(field("Requires-Python") or "").contains(version)


def version_with(path: str, old: str, new: str) -> str:
    """The version of a wheel that is built while this file says something else."""
    place = wheel(path, old, new)
    read = Parser().parsestr((_information(place) / "METADATA").read_text("utf-8"))
    return str(read["Version"])


def facts() -> dict[str, object]:
    """Everything at once, for whoever writes the tests."""
    try:
        wheel()
    except AssertionError as error:
        return {"built": False, "why": str(error)}
    points = [(group, name) for group, named in entry_points().items() for name in named]
    single = [
        *("Name", "Version", "Summary", "Requires-Python", "Keywords", "License", "License-Expression", "Author"),
        *("Author-email", "Maintainer", "Maintainer-email", "Home-page", "Description-Content-Type"),
    ]
    commands = [name for group, name in points if group == "console_scripts"]
    return {
        "built": True,
        "file": file_name(),
        "fields": {name: field(name) for name in single if field(name) is not None},
        "lists": {name: fields(name) for name in ("Classifier", "Project-URL") if fields(name)},
        "first_line": first_line(),
        "packed": packed(),
        "tops": tops(),
        "imports": {name: imported(name) for name in tops()},
        "entry_points": entry_points(),
        "loads": {f"{group}:{name}": loaded(group, name) for group, name in points},
        "helps": {name: helped(name) for name in commands},
        "requirements": requirements(),
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:  # version_with
        try:
            print(json.dumps(version_with(*sys.argv[1:4])))
        except (AssertionError, StopIteration):
            print(json.dumps(""))
    else:
        print(json.dumps(facts()))

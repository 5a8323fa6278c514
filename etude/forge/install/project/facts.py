"""What a repository says about itself, read as text: its name, its tests, and what those need.

Sources, in the order in which they are believed: pyproject and setup files (setup.py as a syntax tree, never run),
the metadata of a source distribution, requirements files, tox, nox, continuous integration, Makefile. Knows no
sandbox and no pip; `ci_commands` reads the files that hold commands.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from posixpath import basename
from typing import Any

from etude.forge.install.project import ci_commands as recipes
from etude.forge.install.project.config_files import read_ini, read_setup, read_toml
from etude.forge.install.project.requirements import canonical, is_requirements_file, needed, read_requirements

_TESTING = re.compile(r"(unit|py)?[-_]?tests?([-_].*)?|testing|.*[-_]tests?")
_DEVELOPING = re.compile(r"dev|develop|development|ci|all|full|complete|default|lint")
_TEST_FILE = re.compile(r"(?:test_[^/]*|[^/]*_tests?|tests?)\.py")
_TEST_FOLDER = re.compile(r"tests?|testing|unit_?tests?")
# Trees that hold other people's code or output; tests in them are not this repository's.
_NOT_OURS = re.compile(r"(^|/)(build|dist|vendor|_vendor|third_party|node_modules|\.[^/]+)/")
_SHOWN = re.compile(r"(^|/)(docs?|examples?)/")  # tests in them are for readers, where there are others
_FILES = re.compile(
    r"(pyproject\.toml|setup\.cfg|setup\.py|PKG-INFO|tox\.ini|pytest\.ini|\.pytest\.ini|noxfile\.py|Makefile|"
    r"\.github/workflows/[^/]+\.ya?ml|(.*/)?[^/]*requirements[^/]*\.(txt|in)|requirements/[^/]+\.(txt|in)|"
    r"(.*/)?(test|tests|dev)[^/]*\.txt)"
)
_MOST_FILES = 60


@dataclass(frozen=True)
class Project:
    """The facts that proposing and installing start from."""

    name: str = ""
    version: str = ""
    roots: tuple[str, ...] = ("",)  # folders of the workspace that hold importable code
    modules: tuple[str, ...] = ()  # what can be imported from there
    tests: tuple[str, ...] = ()  # folders, or files where they lie beside the code
    test_files: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()  # of the project, for testing, where only its build knows what they hold
    wide_extras: tuple[str, ...] = ()  # likewise, all the others
    requirements: tuple[str, ...] = ()  # for testing
    wide_requirements: tuple[str, ...] = ()  # for developing
    scripts: tuple[str, ...] = ()  # commands that it installs
    commands: tuple[str, ...] = ()  # test commands that its own files name
    addopts: str = ""  # pytest's
    variables: Mapping[str, str] = field(default_factory=dict)
    is_packaged: bool = False  # pip can install it
    named: frozenset[str] = frozenset()  # every distribution that its files ask for, for whatever purpose


def files_to_read(paths: Iterable[str]) -> list[str]:
    """The files worth reading, of all that there are."""
    found = [path for path in paths if _FILES.fullmatch(path) and path.count("/") <= 2]
    return sorted(found, key=lambda path: (path.count("/"), path))[:_MOST_FILES]


def read_project(paths: Sequence[str], texts: Mapping[str, str]) -> Project:
    """What the texts say, given the paths of all files."""
    toml, cfg = read_toml(texts.get("pyproject.toml", "")), read_ini(texts.get("setup.cfg", ""))
    setup = read_setup(texts.get("setup.py", ""))
    metadata = HeaderParser().parsestr(texts.get("PKG-INFO", ""))
    name = _first(
        _get(toml, "project", "name"),
        _get(toml, "tool", "poetry", "name"),
        cfg.get("metadata", {}).get("name"),
        setup.get("name"),
        metadata.get("Name"),
        _get(toml, "tool", "flit", "metadata", "module"),
    )
    extras = _extras(
        toml, cfg, setup, metadata.get_all("Requires-Dist") or [], metadata.get_all("Provides-Extra") or []
    )
    named = {canonical(extra): lines for extra, lines in extras.items() if lines}
    roots, modules = _layout(paths)
    testing, developing = _requirements(toml, cfg, setup, texts)
    test_extras = [extra for extra in extras if _TESTING.fullmatch(canonical(extra))]
    if not test_extras and not testing:
        test_extras = [extra for extra in extras if _DEVELOPING.fullmatch(canonical(extra))]
    for extra in extras:
        (testing if extra in test_extras else developing).extend(_members(extra, named, name))
    pytest_options = _pytest_options(toml, cfg, texts)
    test_files = _test_files(paths)
    return Project(
        name=name,
        version=_first(metadata.get("Version"), _get(toml, "project", "version"), setup.get("version")),
        roots=roots,
        modules=modules,
        tests=_test_folders(test_files, paths, str(pytest_options.get("testpaths", ""))),
        test_files=test_files,
        extras=tuple(extra for extra in test_extras if canonical(extra) not in named),
        wide_extras=tuple(extra for extra in extras if extra not in test_extras and canonical(extra) not in named),
        requirements=tuple(needed(testing, name)),
        wide_requirements=tuple(needed(developing, name)),
        scripts=_scripts(toml, cfg, setup),
        commands=tuple(recipes.test_commands(texts)),
        addopts=str(pytest_options.get("addopts", "")),
        variables=recipes.variables(texts),
        is_packaged=any(path in ("pyproject.toml", "setup.py", "setup.cfg") for path in paths),
        named=_named(toml, cfg, setup, [*(metadata.get_all("Requires-Dist") or []), *testing, *developing]),
    )


def _named(
    toml: dict[str, Any], cfg: Mapping[str, Mapping[str, str]], setup: dict[str, Any], others: Sequence[str]
) -> frozenset[str]:
    """What the project asks for in any of its lists, by name."""
    lines = [*others, *_strings(_get(toml, "project", "dependencies")), *_strings(setup.get("install_requires"))]
    lines += _lines(cfg.get("options", {}).get("install_requires"))
    lines += [line for group in (_get(toml, "dependency-groups") or {}).values() for line in _strings(group)]
    lines += _poetry(_get(toml, "tool", "poetry", "dependencies"))
    found = (re.match(r"\s*([A-Za-z0-9][\w.-]*)", line) for line in lines)
    return frozenset(canonical(each[1]) for each in found if each)


def _requirements(
    toml: dict[str, Any], cfg: Mapping[str, Mapping[str, str]], setup: dict[str, Any], texts: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """For testing, and for developing. Named groups first; files that hold commands only where those say nothing."""
    testing: list[str] = []
    developing: list[str] = []
    for group, lines in _groups(toml).items():
        (testing if _TESTING.fullmatch(group) else developing).extend(lines)
    testing += _lines(cfg.get("options", {}).get("tests_require")) + _strings(setup.get("tests_require"))
    for path in texts:
        if path.endswith((".txt", ".in")) and is_requirements_file(path, texts):
            stem = re.sub(r"requirements|\.(txt|in)$", "", basename(path)).strip("-_.") or path.rpartition("/")[0]
            lines = read_requirements(path, texts)
            (testing if _TESTING.fullmatch(stem) else developing).extend(lines)
    commands = recipes.installed_by_commands(texts)
    if testing:
        developing += commands
    else:
        testing += commands
    return testing, developing


def _groups(toml: dict[str, Any]) -> dict[str, list[str]]:
    """Dependency groups of pyproject in all their spellings."""
    found: dict[str, list[str]] = {}
    standard = _get(toml, "dependency-groups") or {}

    def members(group: str, seen: tuple[str, ...] = ()) -> list[str]:
        lines: list[str] = []
        for entry in standard.get(group, []) if group not in seen else []:
            if isinstance(entry, str):
                lines.append(entry)
            elif isinstance(entry, dict) and isinstance(entry.get("include-group"), str):
                lines += members(entry["include-group"], (*seen, group))
        return lines

    for group in standard:
        found.setdefault(canonical(group), []).extend(members(group))
    for group, entry in (_get(toml, "tool", "poetry", "group") or {}).items():
        found.setdefault(canonical(group), []).extend(_poetry(_get(entry, "dependencies")))
    found.setdefault("dev", []).extend(_poetry(_get(toml, "tool", "poetry", "dev-dependencies")))
    for group, lines in (_get(toml, "tool", "pdm", "dev-dependencies") or {}).items():
        found.setdefault(canonical(group), []).extend(_strings(lines))
    found["dev"] += _strings(_get(toml, "tool", "uv", "dev-dependencies"))
    for group, entry in (_get(toml, "tool", "hatch", "envs") or {}).items():
        lines = [*_strings(_get(entry, "dependencies")), *_strings(_get(entry, "extra-dependencies"))]
        found.setdefault("test" if group == "default" else canonical(group), []).extend(lines)
    return {group: lines for group, lines in found.items() if lines and group not in ("docs", "doc", "lint", "typing")}


def _poetry(table: Any) -> list[str]:
    """Poetry's own way to write versions is left out: the names are enough."""
    return [name for name in table if name != "python"] if isinstance(table, dict) else []


def _extras(
    toml: dict[str, Any],
    cfg: Mapping[str, Mapping[str, str]],
    setup: dict[str, Any],
    requires: Sequence[str],
    provided: Sequence[str],
) -> dict[str, list[str]]:
    """The extras and their requirements, as far as a text says those."""
    found: dict[str, list[str]] = {}

    def add(extra: Any, lines: Sequence[str]) -> None:
        if isinstance(extra, str) and re.fullmatch(r"[\w.-]+", extra):
            same = next((known for known in found if canonical(known) == canonical(extra)), extra)
            if not found.setdefault(same, []):
                found[same] = list(lines)

    for extra, lines in (_get(toml, "project", "optional-dependencies") or {}).items():
        add(extra, _strings(lines))
    for extra, text in cfg.get("options.extras_require", {}).items():
        add(extra, _lines(text))
    declared = setup.get("extras_require")
    for extra, lines in declared.items() if isinstance(declared, dict) else ():
        add(extra, _strings(lines))
    for extra in [*(_get(toml, "tool", "flit", "metadata", "requires-extra") or {}), *provided]:
        marked = [line for line in requires if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", line)]
        add(
            extra,
            [re.sub(rf"\s*(;|and)\s*\(?extra\s*==\s*['\"]{re.escape(extra)}['\"]\)?", "", line) for line in marked],
        )
    for extra, names in (_get(toml, "tool", "poetry", "extras") or {}).items():
        add(extra, _strings(names))
    return found


def _members(extra: str, named: Mapping[str, Sequence[str]], own: str, seen: tuple[str, ...] = ()) -> list[str]:
    """The requirements of an extra, with those of the project's extras that it names."""
    lines: list[str] = []
    for line in named.get(canonical(extra), ()) if extra not in seen else ():
        inner = re.fullmatch(rf"{re.escape(own)}\[([\w\s,.-]+)\].*", line.strip(), re.IGNORECASE) if own else None
        if inner:
            for each in inner[1].split(","):
                lines += _members(each.strip(), named, own, (*seen, extra))
        else:
            lines.append(line)
    return lines


def _scripts(toml: dict[str, Any], cfg: Mapping[str, Mapping[str, str]], setup: dict[str, Any]) -> tuple[str, ...]:
    points = setup.get("entry_points")
    lines = _strings(points.get("console_scripts")) if isinstance(points, dict) else []
    lines += _lines(cfg.get("options.entry_points", {}).get("console_scripts"))
    names = [line.partition("=")[0].strip() for line in lines]
    names += [*(_get(toml, "project", "scripts") or {}), *(_get(toml, "tool", "poetry", "scripts") or {})]
    return tuple(dict.fromkeys(name for name in names if re.fullmatch(r"[\w.-]+", name)))


def _layout(paths: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where imports start, and what can be imported: packages below `src` or `lib`, or at the top."""
    for root in ("src", "lib", "python", ""):
        start = f"{root}/" if root else ""
        below = [path[len(start) :] for path in paths if path.startswith(start)]
        packages = {path.split("/")[0] for path in below if path.count("/") == 1 and path.endswith("/__init__.py")}
        alone = {path[:-3] for path in below if "/" not in path and path.endswith(".py") and path.isascii()}
        packages = {name for name in packages if not _TEST_FOLDER.fullmatch(name) and name not in ("docs", "examples")}
        alone = {
            name for name in alone if name.isidentifier() and name not in ("setup", "noxfile", "conftest", "tasks")
        }
        alone = {name for name in alone if not _TEST_FILE.fullmatch(f"{name}.py")}
        if packages or (alone and (root or not packages)):
            return (root,), tuple(sorted(packages) or sorted(alone))
    return ("",), ()


def _test_files(paths: Sequence[str]) -> tuple[str, ...]:
    found = sorted(path for path in paths if _TEST_FILE.fullmatch(basename(path)) and not _NOT_OURS.search(path))
    return tuple([path for path in found if not _SHOWN.search(path)] or found)


def _test_folders(files: Sequence[str], paths: Sequence[str], testpaths: str) -> tuple[str, ...]:
    """The folders that pytest's settings name and that exist, or the topmost ones that hold tests."""
    folders = {path[: at.start()] for path in paths for at in re.finditer("/", path)}
    named = [path.strip("./") for path in _words(testpaths.replace(",", " "))]
    existing = [path for path in named if path in folders or path in paths]
    if any(file == path or file.startswith(f"{path}/") for path in existing for file in files):
        return tuple(existing)
    found: dict[str, None] = {}
    for path in files:
        parts = path.split("/")
        at = next((n for n, part in enumerate(parts[:-1]) if _TEST_FOLDER.fullmatch(part)), None)
        place = "/".join(parts[: at + 1]) if at is not None else path if len(parts) <= 2 else "/".join(parts[:-1])
        found[place] = None
    return tuple(place for place in found if not any(place.startswith(f"{other}/") for other in found))


def _pytest_options(
    toml: dict[str, Any], cfg: Mapping[str, Mapping[str, str]], texts: Mapping[str, str]
) -> dict[str, str]:
    """pytest's settings from the first place where it looks for them."""
    for name in ("pytest.ini", ".pytest.ini"):
        if name in texts:
            return dict(read_ini(texts[name]).get("pytest", {}))
    table = _get(toml, "tool", "pytest", "ini_options") or _get(toml, "tool", "pytest")
    if isinstance(table, dict):
        return {
            key: shlex.join(_strings(value)) if isinstance(value, list) else str(value) for key, value in table.items()
        }
    tox = read_ini(texts.get("tox.ini", ""))
    return dict(tox.get("pytest") or cfg.get("tool:pytest") or cfg.get("pytest") or {})


def _get(table: Any, *keys: str) -> Any:
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table


def _first(*values: Any) -> str:
    return next((value for value in values if isinstance(value, str) and value), "")


def _strings(value: Any) -> list[str]:
    values = value.splitlines() if isinstance(value, str) else value if isinstance(value, list) else []
    return [each for each in values if isinstance(each, str)]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is never closed
        return text.split()


def _lines(text: str | None) -> list[str]:
    return [line.strip() for line in (text or "").splitlines() if line.strip()]

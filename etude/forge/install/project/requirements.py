"""Requirements as text: which lines are one, what a file of them names, which of them testing can do without.

Nothing is resolved here, and nothing read from a disk: texts come in, names and constraints go out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from posixpath import dirname, join, normpath

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?P<extras>\[[\w\s.,-]*\])?\s*"
    r"(?P<version>\(?\s*(?:(?:[<>=!~]=?|===)\s*[\w.*+!-]+\s*,?\s*)*\)?)\s*(?P<marker>;.*)?"
)
_INCLUDED = re.compile(r"(?:-r|--requirement)[\s=]+(\S+)")
_DEEPEST = 5  # files that name files
# Names that say what a file is for. Others count only where a file of settings or commands names them.
_SAYS_SO = re.compile(r"(requirements|reqs|deps|dependencies)[^/]*(/[^/]+)?$")
_INSIDE_TESTS = re.compile(r"(^|.*/)(tests?|testing|unit_?tests?)/(?!requirements/|reqs/)[^/]+/.*")
# What people develop with and no test imports; where one does, its absence will say so.
_TOOLS = re.compile(
    r"(black|ruff|flake8.*|pylint.*|mypy|isort|pre-commit|tox.*|nox.*|twine|build|bump.*|sphinx.*|furo|myst.*|towncrier|"
    r"codecov|coveralls|mkdocs.*|pyright|bandit|safety|check-manifest|commitizen|interrogate|zest-releaser|ipython|ipdb|"
    r"pip|pip-tools|virtualenv|pytest-(black|flake8|mypy|pylint|isort|ruff|checkdocs|pep8|pycodestyle|codspeed|sugar)|"
    r"pydocstyle|autopep8|yapf|doc8|readme-renderer|types-.*|uv|hatch|poetry|pdm|flit|jupyter.*|notebook|nbsphinx)"
)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """The distribution that a requirement names, or nothing where the text is not one."""
    found = _REQUIREMENT.fullmatch(requirement.strip())
    return canonical(found["name"]) if found else ""


def without_version(requirement: str) -> str:
    """Without its version: for pins that no longer fit."""
    found = _REQUIREMENT.fullmatch(requirement.strip())
    if not found:
        return ""
    return found["name"] + (found["extras"] or "") + (f" {found['marker']}" if found["marker"] else "")


def needed(requirements: Iterable[str], own: str = "") -> list[str]:
    """The requirements among these texts, without tools and without the project itself.

    Each distribution once, or once for each condition: which one holds is for pip to say.
    """
    found: dict[tuple[str, str], str] = {}
    for text in requirements:
        line = text.split(" #")[0].strip()
        name = name_of(line)
        if name and name != canonical(own) and not _TOOLS.fullmatch(name):
            found.setdefault((name, line.partition(";")[2].strip()), line)
    return list(found.values())


def read_requirements(path: str, texts: Mapping[str, str], depth: int = 0) -> list[str]:
    """The lines of a requirements file and of the files that it includes."""
    found: list[str] = []
    joined = texts.get(path, "").replace("\\\n", " ")
    for raw in joined.splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        included = _INCLUDED.match(line)
        if included and depth < _DEEPEST:
            found += read_requirements(normpath(join(dirname(path), included[1])), texts, depth + 1)
        elif line and not line.startswith("-"):
            found.append(re.split(r"\s--hash", line)[0].strip())
    return found


def is_requirements_file(path: str, texts: Mapping[str, str]) -> bool:
    """Whether a text file lists what is to be installed: its name or its folder says so, or another file installs from
    it, and it has the form. Anything else is data, and must not choose what is installed."""
    if _INSIDE_TESTS.fullmatch(path):  # what lies in folders below the tests is what they read
        return False
    said = _SAYS_SO.search(path)
    place = rf"(?:\{{toxinidir\}}/|\./)?{re.escape(path)}(?![\w/])"
    installed = re.compile(rf"(?:-r|--requirement|\bfile)\W*{place}")
    if not said and not any(installed.search(text) for other, text in texts.items() if other != path):
        return False
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in texts.get(path, "").replace("\\\n", " ").splitlines()]
    given = [re.split(r"\s--hash", line)[0].strip() for line in lines if line and not line.startswith("-")]
    # Addresses and paths are requirements too; nothing is made of them here.
    odd = [line for line in given if not name_of(line) and "://" not in line and not line.startswith((".", "/"))]
    return len(odd) <= len(given) // 4

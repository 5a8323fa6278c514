"""Commands that a repository's files name: what tox, nox, continuous integration and Makefile install and run.

Only text is looked at. What cannot be read from the text (a variable, a matrix, a script of their own) is left.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping

from etude.forge.install.project.config_files import read_ini
from etude.forge.install.project.requirements import read_requirements
from etude.forge.leaks.deleted_code import parse_python

_PIP = re.compile(r"(?:python[\d.]*\s+-m\s+|uv\s+)?pip[\d.]*\s+install\s+(?P<rest>[^\n&|;#>]*)")
_TEST_COMMAND = re.compile(r"(?:coverage run -m\s+|python[\d.]*\s+-m\s+)?(?:pytest|py\.test|unittest)\b[^\n&|;#>{}$]*")
# In workflows, tox.ini and a Makefile. What a comment says about pip goes on in plain words, and those are no packages.
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_WITH_VALUE = (
    *("-r", "-c", "--requirement", "--constraint", "-e", "--editable", "-i", "--index-url", "--extra-index-url"),
    *("-f", "--find-links", "-t", "--target", "--group", "--extra", "--prefix", "--upgrade-strategy"),
)
_MOST = 20


def installed_by_commands(texts: Mapping[str, str]) -> list[str]:
    """Requirements from tox's deps, nox's `session.install` and `pip install` lines."""
    found = list(_tox_dependencies(texts))
    found += _nox_installs(texts.get("noxfile.py", ""))
    for path, text in texts.items():
        if path.startswith(".github/") or path in ("Makefile", "tox.ini"):
            for line in _PIP.finditer(_COMMENT.sub("", text).replace("\\\n", " ")):
                found += _words(line["rest"], texts)
    return [line for line in found if line and not any(mark in line for mark in "{$/\\")]


def test_commands(texts: Mapping[str, str]) -> list[str]:
    """How the repository itself runs its tests, as far as a line says it."""
    found: dict[str, None] = {}
    for path, text in texts.items():
        if path.startswith(".github/") or path in ("Makefile", "tox.ini", "noxfile.py", "pyproject.toml"):
            for line in _TEST_COMMAND.finditer(text):
                command = " ".join(line[0].split()).strip("\"'` ,)]")
                if len(command) > len("pytest"):
                    found[command] = None
    return list(found)[:_MOST]


def variables(texts: Mapping[str, str]) -> dict[str, str]:
    """What tox sets for its tests, where the value is plain."""
    found: dict[str, str] = {}
    for line in read_ini(texts.get("tox.ini", "")).get("testenv", {}).get("setenv", "").splitlines():
        name, equals, value = line.partition("=")
        plain = equals and re.fullmatch(r"[A-Z][A-Z0-9_]*", name.strip()) and re.fullmatch(r"[\w.,:-]*", value.strip())
        if plain and not name.strip().startswith(("PIP_", "COVERAGE", "PYTHONPATH", "LD_")):
            found[name.strip()] = value.strip()
    return found


def _tox_dependencies(texts: Mapping[str, str]) -> Iterator[str]:
    for section, options in read_ini(texts.get("tox.ini", "")).items():
        if re.fullmatch(r"testenv(:(py.*|tests?|unit))?", section):
            for raw in options.get("deps", "").splitlines():
                line = raw.strip()
                factor, colon, rest = line.partition(":")
                if colon and re.fullmatch(r"[\w{},!-]+", factor):
                    line = rest.strip() if re.fullmatch(r"py3?[\w{},-]*|tests?", factor) else ""
                if line.startswith("-r"):
                    yield from read_requirements(line[2:].strip().removeprefix("{toxinidir}/"), texts)
                elif line:
                    yield line


def _nox_installs(source: str) -> list[str]:
    """Plain words given to `session.install` in sessions that have "test" in their name."""
    tree = parse_python(source)
    found = []
    for function in tree.body if tree is not None else ():
        if isinstance(function, ast.FunctionDef) and "test" in function.name:
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "install":
                    found += [str(word.value) for word in call.args if isinstance(word, ast.Constant)]
    return [word for word in found if not word.startswith(("-", "."))]


def _words(rest: str, texts: Mapping[str, str]) -> list[str]:
    try:
        words = shlex.split(rest)
    except ValueError:
        return []
    found: list[str] = []
    skip = ""
    for word in words:
        if skip:
            found += read_requirements(word, texts) if skip in ("-r", "--requirement") else []
            skip = ""
        elif word in _WITH_VALUE:
            skip = word
        elif not word.startswith(("-", ".")):
            found.append(word)
    return found

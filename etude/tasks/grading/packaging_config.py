"""Which part of a configuration file is about packaging, and which is not and may steer a run of tests.

`pyproject.toml` and `setup.cfg` hold both. A task about packaging lets an agent edit such a file by name; what it
changed reaches the grader only where everything outside of the packaging part is as it was. Read as the tools read it,
and where in doubt the answer is no. Knows texts; no task and no grader.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any, Final

FILES: Final = ("pyproject.toml", "setup.cfg")
# Tables of [tool] that decide what is built. No plugin of a test runner reads them.
TOOLS: Final = frozenset(
    (
        *("setuptools", "setuptools_scm", "setuptools-git-versioning", "distutils", "versioneer", "versioningit"),
        *("hatch", "flit", "pdm", "poetry", "poetry-dynamic-versioning", "uv-dynamic-versioning"),
        *("maturin", "scikit-build"),
    )
)
BACKEND: Final = ("build-backend", "backend-path")  # of [build-system]: who builds stays
TABLES: Final = frozenset(("build-system", "project", "dependency-groups"))
SECTIONS: Final = re.compile(r"metadata|options(\..*)?|files|entry_points|egg_info|bdist_wheel|sdist|build(_\w+)?")


MOST_ADDED: Final = 64 << 10  # bytes that such a file may grow by
# A key with so many parts: reading one of n parts takes n times n steps, and this is read where rollouts are graded.
MOST_PARTS: Final = 20
_BETWEEN: Final = re.compile(r"[^=,{}\[\]\n]+")  # what a key can stand in, whatever is around it


def steering_change(path: str, before: bytes | None, after: bytes | None) -> str:
    """Why this change of a configuration file at the top of a workspace is not about packaging alone; else nothing."""
    if path not in FILES:
        return ""
    if before != after and _is_too_much(before or b"", after or b""):
        return "it is longer, or its keys are, than packaging needs"
    own, other = (_aside(path, data or b"") for data in (before, after))
    if other is None:
        return "it cannot be read"
    return "" if own == other else "it changes settings that are not about packaging"


def _is_too_much(before: bytes, after: bytes) -> bool:
    if len(after) > len(before) + MOST_ADDED:
        return True
    # What the file had before, a long sentence for example, is nobody's attack.
    return bool(_long_keys(after) - _long_keys(before))


def _long_keys(data: bytes) -> set[str]:
    found = (each[0] for each in _BETWEEN.finditer(data.decode(errors="replace")))
    return {each for each in found if each.count(".") >= MOST_PARTS}


def _aside(path: str, data: bytes) -> Any:
    """Everything in the file that is not about packaging; None where it cannot be read."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return _toml_aside(text) if path.endswith(".toml") else _ini_aside(text)


def _toml_aside(text: str) -> str | None:
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    tools = tables.pop("tool", {})
    if not isinstance(tools, dict):
        return None
    system = tables.get("build-system", {})
    if not isinstance(system, dict):
        return None
    rest = {name: value for name, value in tables.items() if name not in TABLES}
    rest["build-system"] = {name: system[name] for name in BACKEND if name in system}
    rest["tool"] = {name: value for name, value in tools.items() if name not in TOOLS}
    return json.dumps(rest, sort_keys=True, default=repr)  # as text: 1, 1.0 and true are equal to Python


def _ini_aside(text: str) -> list[str]:
    """The lines of all other sections, and of what stands before the first, but empty ones and comments.

    Lines end where `str.splitlines` ends them, which is what readers of such files use; a line that starts with a
    bracket and is not certainly the head of a packaging section is one of the others."""
    found: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("["):
            head = re.fullmatch(r"\[([\w.:-]+)\]\s*", line)
            inside = head is not None and SECTIONS.fullmatch(head[1]) is not None
        if not inside and line.strip() and not line.startswith(("#", ";")):
            found.append(line.rstrip())
    return found

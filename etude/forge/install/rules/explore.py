"""Stage 1 by rules: look at the files, then name ten commands and say what each should print.

Reads what a person would read first and installs nothing. `look` is shared with stage 2, which starts by looking too.
"""

from __future__ import annotations

import shlex
from collections.abc import Generator, Sequence
from posixpath import basename

from etude.core.policy import Call
from etude.forge.install.project.facts import Project, files_to_read, read_project
from etude.forge.install.rules.scripted_policy import Steps, output, run
from etude.forge.install.target_commands import PROPOSALS, Kind, Proposal

_LIST = "find . -type f -size -4096k -not -path './.git/*' | head -n 20000"


def look() -> Generator[Sequence[Call], list[str], Project]:
    """The project, from the list of its files and the texts of those that describe it."""
    (listed,) = yield [run(_LIST)]
    paths = [line.removeprefix("./") for line in output(listed).splitlines() if line.startswith("./")]
    described = files_to_read(paths)
    texts = (yield [run(f"cat -- {shlex.quote(path)}") for path in described]) if described else []
    return read_project(paths, dict(zip(described, map(output, texts), strict=True)))


def explore() -> Steps:
    project = yield from look()
    if not project.tests:
        return "This repository has no tests that I can find."
    proposals = propose(project)
    yield [
        Call("propose", {"command": each.command, "prints": each.prints, "expects": each.expects, "kind": each.kind})
        for each in proposals
    ]
    return f"Proposed {len(proposals)} commands."


def propose(project: Project) -> list[Proposal]:
    """Ten commands, the likeliest first: tests, imports, version, scripts, and single files of tests to fill up."""
    found: dict[str, Proposal] = {}

    def add(command: str, prints: str, expects: str = "", kind: Kind = "other") -> None:
        found.setdefault(command, Proposal(command, prints, expects, kind))

    where = " ".join(map(shlex.quote, project.tests))
    add(f"python -m pytest {where}", "pytest's summary, with at least ten tests that passed", r"\d+ passed", "tests")
    for module in project.modules[:2]:
        add(f'python -c "import {module}"', "nothing: the module can be imported", "", "import")
    if project.name and project.is_packaged:
        code = f"import importlib.metadata; print(importlib.metadata.version('{project.name}'))"
        add(f'python -c "{code}"', "the version that is installed", r"\d", "version")
    for script in project.scripts[:2]:
        add(f"{script} --help", "how the command is used", "(?i)usage|options|help", "script")
    add(f"python -m pytest --collect-only -q {where}", "the names of all tests", r"\d+ tests? collected|::", "other")
    places = " ".join(shlex.quote(root or ".") for root in project.roots)
    add(f"python -m compileall -q {places} > compile.txt; tail -n 1 compile.txt", "nothing: all files are Python")
    for path in project.test_files:
        if len(found) < PROPOSALS:
            add(f"python -m pytest -q {shlex.quote(path)}", f"that the tests of {basename(path)} passed", "passed")
    fillers = (
        ('python -c "import sys; print(sys.prefix)"', "where the environment lies", "/"),
        ("python -m pytest --version", "the version of pytest", r"pytest \d"),
        ("python -m pytest --fixtures -q", "the fixtures that tests may ask for", "tmp_path"),
        ("python -m pytest --markers", "the marks that tests may carry", "parametrize"),
        ('python -c "import pytest; print(pytest.__file__)"', "where pytest was installed", "pytest"),
        ("python --version", "the version of Python", r"Python 3"),
    )
    for command, prints, expects in fillers:
        if len(found) < PROPOSALS:
            add(command, prints, expects)
    return list(found.values())[:PROPOSALS]

"""pytest's options as a repository sets them, without those that only change reports, speed or style checks.

Which tests run and how they behave stays as the repository says; coverage, parallel runs, reports and linters dressed
as tests do not belong to a task. Nothing is deselected here.
"""

from __future__ import annotations

import re
import shlex

_DROPPED = re.compile(
    r"--(no-)?cov([=-].*)?|-n(\d+|auto|logical)?|--numprocesses.*|--dist.*|--maxprocesses.*|--junit.*|--html.*|--self-contained.*|"
    r"--durations.*|-v+|-q+|--verbose|--quiet|--color.*|--tb.*|-x|--exitfirst|--maxfail.*|--lf|--ff|--last-failed|"
    r"--failed-first|--nf|--sw|--stepwise|-r\w+|-l|--showlocals|--flake8|--black|--isort|--mypy|--pylint|--ruff|"
    r"--ruff-format|--pycodestyle|--pydocstyle|--pep8|--checkdocs|--instafail|--benchmark-(autosave|save|json).*|"
    r"--codspeed|--random-order.*|--reruns.*|--timeout.*|--strict-config|--capture=no|-s|--no-header|--no-summary"
)
# Those of the dropped ones that may take their value as the next word.
_WITH_VALUE = re.compile(
    r"--cov(-report|-config|-fail-under|-context)?|-n|--numprocesses|--dist|--maxprocesses|--junitxml|--junit-xml|--html|"
    r"--durations|--durations-min|--color|--tb|--maxfail|--reruns|--timeout|--random-order-seed"
)


def options_without_reports(addopts: str) -> list[str]:
    """The options for the runner in place of the repository's `addopts`; none where those can stay as they are."""
    try:
        words = shlex.split(addopts)
    except ValueError:
        return []
    kept: list[str] = []
    skip = False
    for number, word in enumerate(words):
        if skip:
            skip = False
        elif _DROPPED.fullmatch(word):
            following = words[number + 1] if number + 1 < len(words) else "-"
            skip = bool(_WITH_VALUE.fullmatch(word)) and not following.startswith("-")
        else:
            kept.append(word)
    return ["-o", "addopts=", *kept] if len(kept) < len(words) else []

"""Every command in README and docs is one that can be typed: `etude` ones are parsed and their recipes loaded.

Of `python FILE` the file has to be there, and each of its options has to stand in it. Stages are dry-run. Not checked:
what is in the page of old names. `python benchmarks/doors/run_commands.py` runs all that can be run.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.doors.page_commands import (
    OLD_NAMES,
    PAGES,
    ROOT,
    Incomplete,
    context_of,
    is_mention,
    named,
    page_commands,
    words_of,
)
from benchmarks.doors.stand_ins import STAGES, planned, stand_ins
from etude.core import recipe as recipes
from tests.conftest import Command

PLANNED = ("README.md", "docs/start/quickstart.md", "docs/start/my-model.md", "docs/start/my-repositories.md")


def commands(page: Path, program: str) -> list[str]:
    return [command.text for command in page_commands(page) if command.text.startswith(f"{program} ")]


def parse(words: list[str]) -> None:
    """Raises what a user would see of wrong options, arguments or settings."""
    context = context_of(words)
    if context is not None and context.info_name in STAGES and context.params.get("recipe") in recipes.builtin():
        settings = [word for word in context.params.get("overrides") or [] if "=" in word]
        recipes.load(context.params["recipe"], [word for word in settings if not word.partition("=")[2].isupper()])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_pages_are_taken_by_the_command_line(page: Path) -> None:
    wrong = {}
    for line in commands(page, "etude") if page.name != OLD_NAMES else []:
        words = words_of(line)
        try:
            if words is None:
                named(line.split()[1:])
            else:
                parse(words)
        except Incomplete as error:
            named(words or [])
            if not is_mention(words or []):
                wrong[line] = str(error)
        except Exception as error:
            wrong[line] = str(error)
    assert wrong == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_programs_in_the_pages_are_there_and_know_their_options(page: Path) -> None:
    wrong = {}
    for line in commands(page, "python"):
        words = words_of(line)
        if not words or not words[0].endswith(".py"):
            continue
        program = ROOT / words[0]
        source = program.read_text() if program.is_file() else ""
        asked = [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
        if 'f"--{' not in source:  # else options are made from a table of names
            asked = [f'"{option}"' for option in asked]
        lacking = [option for option in asked if option.lstrip("-") not in source]
        if not source or lacking:
            wrong[line] = f"no {', '.join(lacking)}" if source else "no such file"
    assert wrong == {}


def test_stages_of_the_first_pages_are_planned_as_they_stand(etude: Command, tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "runs/quickstart")
    shutil.copytree(sorted((tiny_run / "checkpoints").glob("sft-*"))[-1], tmp_path / "my-model")
    assert etude("tasks", "katas", "tasks/shop", "--count", "2", "--levels", "1").returncode == 0
    own = (ROOT / "examples/own_algorithm.py").read_text()
    (tmp_path / "mine.py").write_text(f"{own}\n\nMine = Rare\n")
    lines = [line for page in PLANNED for line in commands(ROOT / page, "etude")]
    wrong, count = {}, 0
    for words in [words for line in lines if (words := words_of(line)) and words[0] in STAGES and len(words) > 1]:
        asked = planned(stand_ins(words, {}))
        answer = etude(*asked)
        count += 1
        if answer.returncode:
            wrong[" ".join(asked)] = answer.stderr
    assert wrong == {} and count >= 8

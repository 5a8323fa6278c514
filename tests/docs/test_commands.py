"""Every command in README and docs is one that can be typed: `etude` ones are parsed and their recipes loaded.

Nothing runs. Of `python FILE` the file has to be there, and each of its options has to stand in it. Not checked: what
is in the glossary (old names), and mentions in a sentence that are no whole command (`etude rl|sft nano`, `...`).
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from etude.cli.bench import DEFAULT
from etude.cli.main import app
from etude.core import recipe as recipes

ROOT = Path(__file__).parents[2]
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - {*(ROOT / "docs" / "log").glob("*.md")})
FENCE = re.compile(r"^```(?:console|sh|bash)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n)((?:    .+\n)+)")  # a block of code without a fence
CONTINUED = re.compile(r"\\\n\s*")
INLINE = re.compile(r"`((?:etude|python) [^`\n]+)`")
OLD_NAMES = "glossary.md"  # its tables name commands as they were
STAGES = ("run", "corpus", "pretrain", "mtp", "extend", "demos", "sft", "rl")


def commands(page: Path) -> list[str]:
    text = CONTINUED.sub(" ", page.read_text())
    blocks = FENCE.findall(text) + INDENTED.findall(FENCE.sub("", text))
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    found = [line for line in lines if line.startswith(("etude ", "python "))]
    return found + [line.replace("\\|", "|") for line in INLINE.findall(FENCE.sub("", text))]


def words_of(line: str) -> list[str] | None:
    """The words of a command; None for a mention that is none (`etude tasks make`, `etude rl|sft nano`, `...`)."""
    try:
        words = shlex.split(line, comments=True)[1:]
    except ValueError:
        return None
    words = [word for word in words if not re.fullmatch(r"\[.*\]?|[^=]*\]", word)]  # optional parts
    if any(re.search(r"[|]|\.\.\.$", word) for word in words) or ">" in words or "&" in words:
        return None
    return words


def parse(words: list[str]) -> None:
    """Raises what a user would see of wrong options, arguments or settings."""
    command: Any = typer.main.get_command(app)
    name, rest = "etude", list(words)
    while subcommands := getattr(command, "commands", None):
        if rest[0] not in subcommands and name == "bench":
            rest = [DEFAULT, *rest]  # as the group itself does
        if rest[0] not in subcommands:
            raise ValueError(f"there is no command {rest[0]!r}")
        name, rest = rest[0], rest[1:]
        command = subcommands[name]
    context = command.make_context(name, rest)
    if context.info_name in STAGES and context.params.get("recipe") in recipes.builtin():
        settings = [word for word in context.params.get("overrides") or [] if "=" in word]
        recipes.load(context.params["recipe"], [word for word in settings if not word.partition("=")[2].isupper()])


def named(words: list[str]) -> None:
    """Raises where a mention (`etude tasks make`, `etude rl|sft nano`) names a command that is not there."""
    command: Any = typer.main.get_command(app)
    for word in words:
        subcommands = getattr(command, "commands", None)
        if not subcommands or not word.replace("|", "").replace("-", "").isalpha() or word.isupper() or word[0] == "-":
            return
        names = word.split("|")
        if lacking := [name for name in names if name not in subcommands]:
            raise ValueError(f"there is no command {lacking[0]!r}")
        command = subcommands[names[0]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_pages_are_taken_by_the_command_line(page: Path) -> None:
    wrong = {}
    for line in [line for line in commands(page) if line.startswith("etude ")] if page.name != OLD_NAMES else []:
        words = words_of(line)
        bare = words is not None and not [word for word in words[1:] if not word.isalpha() or word.isupper()]
        try:
            if words is None or (len(words) <= 2 and bare):  # a command's name in a sentence
                named(line.split()[1:])
            else:
                parse(words)
        except Exception as error:
            wrong[line] = str(error)
    assert wrong == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_programs_in_the_pages_are_there_and_know_their_options(page: Path) -> None:
    wrong = {}
    for line in commands(page):
        words = words_of(line)
        if words is None or not line.startswith("python ") or not words or not words[0].endswith(".py"):
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

"""Every `etude` command in README and docs is one that the command line takes: parsed for real, recipes loaded.

Nothing runs: a command's function is replaced, so options, arguments and settings are checked and no work is done.
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
INLINE = re.compile(r"`(etude [^`\n]+)`")
OLD_NAMES = "glossary.md"  # its tables name commands as they were
STAGES = ("run", "corpus", "pretrain", "mtp", "extend", "demos", "sft", "rl")


def commands(page: Path) -> list[str]:
    text = page.read_text()
    lines = [line.strip().removeprefix("$ ") for block in FENCE.findall(text) for line in block.splitlines()]
    found = [line for line in lines if line.startswith("etude ")]
    return found + [line.replace("\\|", "|") for line in INLINE.findall(FENCE.sub("", text))]


def words_of(line: str) -> list[str] | None:
    """The words of a command; None for a mention that is none (`etude tasks make`, `etude rl|sft nano`, `...`)."""
    try:
        words = shlex.split(line, comments=True)[1:]
    except ValueError:
        return None
    words = [word for word in words if not re.fullmatch(r"\[.*\]?|.*\]", word)]  # optional parts
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_pages_are_taken_by_the_command_line(page: Path) -> None:
    wrong = {}
    for line in commands(page) if page.name != OLD_NAMES else []:
        words = words_of(line)
        bare = words is not None and not [word for word in words[1:] if not word.isalpha() or word.isupper()]
        if words is None or (len(words) <= 2 and bare):  # a command's name in a sentence
            continue
        try:
            parse(words)
        except Exception as error:
            wrong[line] = str(error)
    assert wrong == {}

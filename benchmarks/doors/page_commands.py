"""The commands that README and docs show: in blocks of code and inside sentences. Reads pages; runs nothing."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import typer

from etude.cli.bench import DEFAULT
from etude.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - {*(ROOT / "docs" / "log").glob("*.md")})
OLD_NAMES = "old-names.md"  # its tables name commands as they were
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELLS = ("", "console", "sh", "bash")
INDENTED = re.compile(r"(?<=\n\n)((?:    .+\n)+)")  # a block of code without a fence
CONTINUED = re.compile(r"\\\n\s*")
PROGRAMS = r"(?:[A-Z_]+=\S+ )*(?:[\w./-]+/bin/)?(?:etude|python3?|pip|make|torchrun|ray|curl|source|export"
PROGRAMS += r"|pytest|tensorboard|hf|kubectl|docker image)"
LINE = re.compile(rf"^{PROGRAMS} .*$")
INLINE = re.compile(rf"`({PROGRAMS} [^`\n]+)`")


@functools.cache
def _program() -> Any:
    return typer.main.get_command(app)


class Command(NamedTuple):
    page: str  # its path in the repository
    text: str


def page_commands(page: Path) -> list[Command]:
    """All of a page, in the order of its blocks, then of its sentences."""
    text = CONTINUED.sub(" ", page.read_text())
    blocks = [block for language, block in FENCE.findall(text) if language in SHELLS]
    blocks += INDENTED.findall(FENCE.sub("", text))
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    found = [line for line in lines if LINE.match(line)]
    found += [line.replace("\\|", "|") for line in INLINE.findall(FENCE.sub("", text))]
    return [Command(str(page.relative_to(ROOT)), line) for line in found]


def all_commands() -> list[Command]:
    return [command for page in PAGES if page.name != OLD_NAMES for command in page_commands(page)]


def words_of(line: str) -> list[str] | None:
    """The words behind the program; None for a mention that is no command (`etude rl|sft nano`, `...`)."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]  # variables of the environment
    words = [word for word in words[1:] if not re.fullmatch(r"\[.*\]?|[^=]*\]", word)]  # optional parts
    if any(re.search(r"[|]|\.\.\.$", word) for word in words) or ">" in words or "&" in words:
        return None
    return words


class Incomplete(ValueError):
    """An argument is missing: the mention of a command in a sentence."""


def context_of(words: list[str]) -> Any:
    """The parsed command; raises what a user would see of wrong options or arguments."""
    command: Any = _program()
    name, rest = "etude", list(words)
    while subcommands := getattr(command, "commands", None):
        if name == "bench" and (not rest or rest[0] not in subcommands):
            rest = [DEFAULT, *rest]  # as the group itself does
        if not rest or rest[0] not in subcommands:
            if rest and rest[0].startswith("--") and name == "etude":
                return None  # an option of the program itself
            raise ValueError(f"there is no command {rest[0]!r}") if rest else Incomplete("a command is missing")
        name, rest = rest[0], rest[1:]
        command = subcommands[name]
    try:
        return command.make_context(name, rest)
    except Exception as error:  # of click, or of the copy of it that newer typers bring
        if not hasattr(error, "format_message"):
            raise
        kind = Incomplete if type(error).__name__ == "MissingParameter" else ValueError
        raise kind(error.format_message()) from None


def is_mention(words: list[str]) -> bool:
    """Short enough to be the name of a command in a sentence: `etude tasks make`, `etude audit --quarantine`."""
    return len(words) <= 3 and sum(word.startswith("-") or "=" in word for word in words) <= 1


def named(words: list[str]) -> None:
    """Raises where a mention (`etude tasks make`, `etude rl|sft nano`) names a command that is not there."""
    command: Any = _program()
    for word in words:
        subcommands = getattr(command, "commands", None)
        if not subcommands or not word.replace("|", "").replace("-", "").isalpha() or word.isupper() or word[0] == "-":
            return
        names = word.split("|")
        if lacking := [name for name in names if name not in subcommands]:
            raise ValueError(f"there is no command {lacking[0]!r}")
        command = subcommands[names[0]]

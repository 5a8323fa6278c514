"""What every command shares: answers for people and for scripts, tables, and the options they have in common.

A mistake of the user becomes one sentence and exit status 2, Ctrl-C the command that resumes and exit status 130, and
`--json` one JSON object as the last line of standard output.
"""

from __future__ import annotations

import json as jsonlib
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from etude.core import durable
from etude.core.errors import EtudeError
from etude.core.progress import short
from etude.core.run import TYPED, typed_command

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes, such as pretrain.steps=50.")
]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, such as runs/quickstart.")]
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A built-in recipe, or the path of a .toml file.")]
ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A run, a checkpoint, or a Hugging Face directory.")]
TaskFolders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Task directories, or folders of them.")]
Repository = Annotated[
    str, typer.Argument(metavar="REPO", help="A folder, a git checkout, or a package: attrs==24.2.0.")
]
Backend = Annotated[
    str, typer.Option("--sandbox", help="local, docker (for a Dockerfile), or plain (no isolation, and stamped).")
]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same tasks and scripts.")]
StoreFolder = Annotated[
    Path | None, typer.Option("--store", help="Folder of layers; else $ETUDE_STORE or the user's cache.")
]
FindLinks = Annotated[
    Path | None, typer.Option("--find-links", help="A folder of packages to install from, and no index.")
]


def answer(
    work: Callable[[], dict[str, Any]], show: Callable[[dict[str, Any]], None], json: bool, *, plain: bool = False
) -> None:
    """Do the work, show or print its answer, and exit with the status that the answer deserves.

    A `plain` answer is all names of the caller's: it has no `ok` among them unless something went wrong.
    """
    code = 1
    # A bug of ours still ends in one JSON object: scripts read the last line in every case.
    found: dict[str, Any] = {"ok": False, "error": "unexpected error"}
    try:
        found = ({} if plain else {"ok": True}) | work()
        if not json:
            show(dict(found))
        code = 0 if plain or found["ok"] else 1
        # A stage that was asked to stop returns as others do; the command then ends as an interrupted one.
        if found.get("stopped"):
            raise KeyboardInterrupt
    except EtudeError as error:
        code, found = 2, {"ok": False, "error": str(error)}
        _complain(str(error))
    except OSError as error:
        # A path that cannot be read or written is the user's to mend; anything else of the system is a bug of ours.
        if error.filename is None:
            raise
        said = f"cannot use {os.fsdecode(error.filename)}: {durable.why_not(error)}"
        code, found = 2, {"ok": False, "error": said}
        _complain(said)
    except KeyboardInterrupt:
        # Without --fresh, which would throw away what was saved.
        resume = shlex.join(part for part in typed_command() if part != "--fresh")
        code, found = 130, found | {"ok": False, "error": "interrupted", "resume": resume}
        if TYPED not in os.environ:  # a stage's process leaves that to the one that started it
            print(f"interrupted; to continue: {resume}", file=sys.stderr)
    finally:
        if json:
            print(jsonlib.dumps(found, default=str), flush=True)
    if code:
        raise typer.Exit(code)


def _complain(said: str) -> None:
    """One sentence, unless the process that started this one for a stage will say it."""
    if TYPED not in os.environ:
        print(f"error: {said}", file=sys.stderr)


def table(headers: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    shown = Table(*headers, box=None, header_style="bold", pad_edge=False, show_header=any(headers))
    for row in rows:
        # As text: rich would read square brackets in a value as markup.
        shown.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    Console().print(shown)


def print_next(*commands: str) -> None:
    """The commands that come next, one on each line; one that is too long for the terminal goes on behind a `\\`."""
    width = Console().width
    for number, command in enumerate(commands):
        line, words = "next: " if number == 0 else "      ", [shlex.quote(word) for word in shlex.split(command)]
        for at, word in enumerate(words):
            # Two characters are for the sign that it goes on.
            if at and len(line) + 1 + len(word) + (2 if at + 1 < len(words) else 0) > width:
                print(f"{line} \\")
                line = f"        {word}"
            else:
                line += f" {word}" if at else word
        print(line)


def values(facts: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {short(value) if isinstance(value, int | float) and not isinstance(value, bool) else value}"
        for name, value in facts.items()
    )


def share(value: Any) -> str:
    """A share, or a share with its interval, in percent; a dash where there is none."""
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        mean, low, high = value
        return f"{mean:.1%} ({low:.1%} to {high:.1%})"
    return f"{value:.1%}"


def points(gain: Any) -> str:
    """A difference of shares with its interval, in points; a dash where there is none."""
    if gain is None:
        return "-"
    mean, low, high = (100 * each for each in gain)
    return f"{mean:+.1f} points ({low:+.1f} to {high:+.1f})"

"""Runs the commands of docs/start/my-repositories.md and my-model.md exactly as they stand there, in a fresh folder.

    python benchmarks/doors/run_pages.py

What the pages assume is made first: a repository `shop` (small_repository.py), a model in `runs/quickstart` (a toy of a
few steps in place of the real one, which would take a quarter of an hour) and the same as a folder `my-model`. Every
command has to end well; its output is printed, so this is also how the pages' transcripts are made. About 9 minutes on
two busy cores, most of it making tasks. `--list` only names the commands.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.doors.small_repository import write_repository

PAGES = [Path(__file__).parents[2] / "docs" / "start" / f"{name}.md" for name in ("my-repositories", "my-model")]
MOST_COMMANDS = 8  # of a page
SECONDS = 1200.0  # for one command
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TOY = """
extends = "nano"
run = { threads = 1 }
model = { depth = 2 }
tokens = { vocab_size = 400, train_bytes = 60_000 }
pretrain = { steps = 6 }
demos = { count = 6 }
sft = { epochs = 1 }

[corpus]
sources = [{ use = "stdlib", weight = 0.3 }, { use = "katas", weight = 0.7, count = 150, invented = 0.7 }]
max_bytes = 120_000
"""


def page_commands(page: Path) -> list[str]:
    """The commands of a page's transcripts, in order."""
    lines = [line for block in CONSOLE.findall(page.read_text()) for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def prepare(folder: Path) -> None:
    """What a reader of the pages has: a repository, a model of the quickstart, a model of their own."""
    write_repository(folder / "shop")
    (folder / "toy.toml").write_text(TOY)
    run("etude sft toy.toml --run runs/quickstart", folder)
    newest = sorted((folder / "runs/quickstart/checkpoints").glob("sft-*"))[-1]
    shutil.copytree(newest, folder / "my-model")


def run(command: str, folder: Path) -> None:
    """One command, its output to ours; ends this program where it fails."""
    print(f"$ {command}", flush=True)
    words = shlex.split(command)
    if words[0] != "etude":
        sys.exit(f"only etude commands are run, not {words[0]}")
    here = {"ETUDE_STORE": str(folder / "store"), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    began = time.monotonic()
    child = subprocess.Popen([sys.executable, "-m", "etude", *words[1:]], cwd=folder, env=os.environ | here)
    try:
        code = _served(child) if words[1] == "serve" else child.wait(SECONDS)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    print(f"({time.monotonic() - began:.0f} s)\n", flush=True)
    if code:
        sys.exit(f"ended with code {code}: {command}")


def _served(child: subprocess.Popen[bytes], seconds: float = 30.0) -> int:
    """A server never ends by itself: it has to live for a while, and to end well at Ctrl-C."""
    try:
        return child.wait(seconds) or 1  # it ended by itself
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)
        # Whoever presses Ctrl-C at a server meant it: 130 is how a shell tells that.
        return 0 if child.wait(60) in (0, 130) else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name the commands and run none")
    parser.add_argument("--keep", type=Path, help="a new folder to work in, which is kept")
    options = parser.parse_args()
    commands = {page: page_commands(page) for page in PAGES}
    for page, found in commands.items():
        if not 0 < len(found) <= MOST_COMMANDS:
            sys.exit(f"{page.name} has {len(found)} commands; 1 to {MOST_COMMANDS} are wanted")
    if options.list:
        print("\n".join(command for found in commands.values() for command in found))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = (options.keep or Path(made)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder)
        for command in [command for found in commands.values() for command in found]:
            run(command, folder)
    print("every command of both pages ended well")


if __name__ == "__main__":
    main()

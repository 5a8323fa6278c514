"""What tasks of JavaScript repositories look like from outside: suite, lock, image, the script for Harbor."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from etude.forge.languages.base import Repository, TaskFiles
from etude.tasks.javascript.parsing import ENDINGS

TEST_SH: Final = Path(__file__).with_name("test.sh").read_bytes()


def _node_image(repository: Repository[Any]) -> bytes:
    """Packages as the lock has them; npm finds out what lies in what."""
    packages = [line.split()[0] for line in repository.environment.lock.splitlines() if "/node_modules/" not in line]
    install = f"RUN npm install --no-save --no-audit --no-fund {' '.join(packages)}\n" if packages else ""
    return f"FROM node:20-bookworm-slim\nWORKDIR /app\nCOPY workspace/ /app/\n{install}".encode()


JAVASCRIPT: Final = TaskFiles("node", "javascript", ENDINGS, "environment/packages.lock", TEST_SH, _node_image)

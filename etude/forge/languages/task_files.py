"""What tasks of each language look like from outside: the suite, the lock, the image and the script for Harbor."""

from __future__ import annotations

import sys
from typing import Any, Final

from etude.forge.languages.base import Repository, TaskFiles
from etude.tasks.javascript.parsing import ENDINGS

TEST_SH: Final = b"""#!/bin/sh
cd /app
cp -R /tests/. /app/
if python -c "
import pytest, sys
sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *open('/tests/ids.txt').read().splitlines()]))
"; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
NODE_SH: Final = b"""#!/bin/sh
cd /app
cp -R /tests/. /app/
failed=0
for file in $(sed 's/::.*//' /tests/ids.txt | sort -u); do
    node --test "$file" || failed=1
done
if [ "$failed" = 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def _python_image(world: Repository[Any]) -> bytes:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    paths = ":".join(f"/app/{path}".rstrip("/") for path in world.environment.paths or ("",))
    variables = "".join(f"ENV {name}={value!r}\n" for name, value in sorted(world.environment.env.items()))
    return (
        f"FROM python:{version}-slim-bookworm\nWORKDIR /app\nCOPY requirements.lock /tmp/requirements.lock\n"
        f"RUN pip install --no-cache-dir --no-deps -r /tmp/requirements.lock\n"
        f"ENV PYTHONPATH={paths} PYTHONDONTWRITEBYTECODE=1\n{variables}COPY workspace/ /app/\n"
    ).encode()


def _node_image(world: Repository[Any]) -> bytes:
    """Packages as the lock has them; npm finds out what lies in what."""
    packages = [line.split()[0] for line in world.environment.lock.splitlines() if "/node_modules/" not in line]
    install = f"RUN npm install --no-save --no-audit --no-fund {' '.join(packages)}\n" if packages else ""
    return f"FROM node:20-bookworm-slim\nWORKDIR /app\nCOPY workspace/ /app/\n{install}".encode()


PYTHON: Final = TaskFiles("pytest", "python", (".py",), "environment/requirements.lock", TEST_SH, _python_image)
JAVASCRIPT: Final = TaskFiles("node", "javascript", ENDINGS, "environment/packages.lock", NODE_SH, _node_image)

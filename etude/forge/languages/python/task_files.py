"""What tasks of Python repositories look like from outside: the suite, the lock, the image, the script for Harbor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from etude.forge.languages.base import Repository, TaskFiles

TEST_SH: Final = Path(__file__).with_name("test.sh").read_bytes()


def _python_image(repository: Repository[Any]) -> bytes:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    paths = ":".join(f"/app/{path}".rstrip("/") for path in repository.environment.paths or ("",))
    variables = "".join(f"ENV {name}={value!r}\n" for name, value in sorted(repository.environment.env.items()))
    return (
        f"FROM python:{version}-slim-bookworm\nWORKDIR /app\nCOPY requirements.lock /tmp/requirements.lock\n"
        f"RUN pip install --no-cache-dir --no-deps -r /tmp/requirements.lock\n"
        f"ENV PYTHONPATH={paths} PYTHONDONTWRITEBYTECODE=1\n{variables}COPY workspace/ /app/\n"
    ).encode()


PYTHON: Final = TaskFiles("pytest", "python", (".py",), "environment/requirements.lock", TEST_SH, _python_image)

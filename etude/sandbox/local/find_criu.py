"""The host's CRIU, found and tried. Only the orchestrator imports this; `criu.py` is what the launcher runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from etude.core.errors import EtudeError
from etude.sandbox.local.criu import Criu

_CHECK_SECONDS: Final = 30.0
_SYSTEM_PATH: Final = ":/usr/local/sbin:/usr/sbin:/sbin"  # where distributions put it, often not in a user's PATH


def find_criu() -> Criu:
    """The host's CRIU, tried; an `EtudeError` says why this machine has none."""
    if os.geteuid() != 0:
        raise EtudeError("the memory of programs can only be kept by root; file snapshots need no rights")
    program = shutil.which("criu", path=os.environ.get("PATH", "") + _SYSTEM_PATH)
    if program is None:
        raise EtudeError(
            "the memory of programs is kept by CRIU, which is not installed here: install criu 4.2 or later"
        )
    try:
        checked = subprocess.run(
            [program, "check"], capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False
        )
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=_CHECK_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise EtudeError(f"CRIU ({program}) cannot be started: {error}") from None
    if checked.returncode != 0:
        reason = (checked.stderr.strip().splitlines() or ["it gives no reason"])[0]
        raise EtudeError(f"CRIU ({program}) does not work with this kernel: {reason}; install criu 4.2 or later")
    files = [word for line in listed.stdout.splitlines() for word in line.split() if word.startswith("/")]
    loaders = [path for path in files if Path(path).name.startswith("ld-")]
    if not loaders:
        raise EtudeError(f"CRIU ({program}) cannot be used: ldd does not say what it is loaded with")
    return Criu(program, loaders[0], tuple(dict.fromkeys(str(Path(path).parent) for path in files)))

"""What the flagship's script knows between its commands, and how it runs one: state, processes, what runs left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.core.run_files import checkpoints_in, read_facts, read_metrics
from etude.tasks.format.config import read
from etude.tasks.format.task import CONFIG, task_folders

GRACE = 25.0  # seconds that a stopped command has to save


@dataclass
class State:
    """What is done: `state.json` of the work folder."""

    file: Path
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> State:
        return cls(file, json.loads(file.read_text()) if file.is_file() else {})

    def done(self, name: str) -> bool:
        return self.steps.get(name, {}).get("status") in ("done", "failed")

    def ok(self, name: str) -> bool:
        return self.steps.get(name, {}).get("status") == "done"

    def note(self, name: str, seconds: float = 0.0, **facts: Any) -> None:
        row = self.steps.setdefault(name, {"seconds": 0.0, "commands": []})
        row["seconds"] = round(row["seconds"] + seconds, 1)
        row.update(facts)
        self.file.write_text(json.dumps(self.steps, indent=1) + "\n")


def environment() -> dict[str, str]:
    """One thread for each of the many processes, but the corpus is encoded by all cores."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def wait(child: subprocess.Popen[bytes], most: float) -> str:
    """done, failed, or stopped: asked to save and stop, and killed if it does not."""
    try:
        return "failed" if child.wait(max(0.0, most)) else "done"
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    return "stopped"


def tail(log: Path, lines: int = 12) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(f"    {line[:300]}" for line in log.read_text(errors="replace").splitlines()[-lines:])
    return ""


def toml(value: Any) -> str:
    """A value on one line, as an override has it."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {toml(item)}' for key, item in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)


def saved(run: Path) -> list[tuple[str, int, Path]]:
    return checkpoints_in(run) if (run / "run.json").is_file() else []


def rl_seconds(run: Path) -> float:
    """Of the run so far; none where it has not begun."""
    with contextlib.suppress(EtudeError, OSError, KeyError, ValueError):
        rows = [row for row in read_metrics(run) if row["stage"] == "rl"]
        # A run that was stopped has no facts of its stage yet.
        ended = read_facts(run)["stages"].get("rl", {}).get("facts", {}).get("seconds", 0.0)
        return float(ended or sum(row.get("seconds", 0.0) for row in rows))
    return 0.0


def ladder_tasks(tasks: Path) -> list[tuple[str, str]]:
    """(package, split) of each of the ladder's first tasks."""
    found = []
    for path in (path for path in task_folders(tasks) if not path.name.startswith(".")):  # those are being made
        _, facts = read((path / CONFIG).read_bytes(), str(path / CONFIG))
        if facts.rung == 1:
            found.append((path.parent.name, facts.split or "train"))
    return found


def held_out_packages(tasks: Path) -> list[str]:
    """Names of the packages whose tasks are held out, as their folders in site-packages are called."""
    return package_folders({package for package, split in ladder_tasks(tasks) if split == "held_out"})


def package_folders(names: Iterable[str]) -> list[str]:
    return sorted({name.lower().replace("-", "_") for name in names})

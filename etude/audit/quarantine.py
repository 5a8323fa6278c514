"""Tasks that were found broken: a list beside them, one line each, that sources of tasks leave out.

    FOLDER/quarantine.jsonl    {"task": "its directory's name", "why": "one sentence"}

To take a task back, delete its line. Made between runs: a run that is resumed should meet the tasks it began with.
"""

from __future__ import annotations

import json
from pathlib import Path

import pydantic

from etude.core.errors import EtudeError

LIST = "quarantine.jsonl"
LARGEST = 64 << 20  # bytes


class _Line(pydantic.BaseModel, extra="ignore"):
    task: str
    why: str = ""


def quarantined(folder: Path) -> dict[str, str]:
    """Names of task directories below `folder` that are to be left out, and why."""
    file = folder / LIST
    if not file.is_file():
        return {}
    if file.is_symlink() or file.stat().st_size > LARGEST:
        raise EtudeError(f"{file} is a link or too large to be a list of tasks")
    found: dict[str, str] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            said = _Line.model_validate_json(line)
        except pydantic.ValidationError:
            raise EtudeError(f'{file}, line {number} is not {{"task": NAME, "why": TEXT}}: mend or delete it') from None
        found[said.task] = said.why
    return found


def quarantine(directory: Path, why: str) -> bool:
    """Puts a task directory on the list beside it; False where it was there already."""
    folder = directory.parent
    if directory.name in quarantined(folder):
        return False
    try:
        with (folder / LIST).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"task": directory.name, "why": why}) + "\n")
    except OSError as error:
        raise EtudeError(f"cannot write {folder / LIST}: {error.strerror}") from error
    return True

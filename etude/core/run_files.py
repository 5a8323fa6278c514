"""Reading a run directory without opening it: its facts, recipe, metrics, checkpoints, and whether it is in use.

Also which changes of a recipe a run allows. `run` writes what is read here.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from etude.core.errors import EtudeError
from etude.core.renamed import DEFAULTS

KIND = "etude run"  # in run.json: the proof that a directory is ours, without which --fresh deletes nothing
LOCK = ".lock"


def read_facts(path: Path) -> dict[str, Any]:
    """run.json of the run at `path`."""
    try:
        facts = json.loads((path / "run.json").read_text())
    except FileNotFoundError:
        raise EtudeError(f"{path} is not a run: it has no run.json") from None
    except (OSError, ValueError) as error:
        raise EtudeError(f"{path / 'run.json'} cannot be read ({error}); restore it or start over elsewhere") from error
    if not isinstance(facts, dict) or facts.get("kind") != KIND:
        raise EtudeError(f"{path} is not a run: its run.json is not ours")
    return facts


def read_recipe(path: Path) -> dict[str, Any]:
    """The resolved recipe of the run at `path`."""
    try:
        return tomllib.loads((path / "recipe.toml").read_text())
    except (OSError, ValueError) as error:
        raise EtudeError(f"{path / 'recipe.toml'} cannot be read ({error}); start over with --fresh") from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The surviving history of the run at `path`: what a killed process logged past its last checkpoint is left out."""
    file = path / "metrics.jsonl"
    if not file.exists():
        return []
    lineages = read_facts(path)["lineages"]
    rows = []
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            # The last line may be half a row of a process that is still writing, or was killed.
            if number < len(lines):
                raise EtudeError(f"{file} line {number} is not JSON; remove that line") from error
    return [
        row
        for row in rows
        # A later lineage that went on from before this row's step has abandoned the row.
        if all(
            row["step"] <= later["resumed"].get(stage_of_row(row["stage"]), math.inf)
            for later in lineages[row["lineage"] + 1 :]
        )
    ]


def run_of(path: Path) -> Path | None:
    """The run that `path` is, or that it lies in as a checkpoint does; None for a model from elsewhere."""
    for folder in (path, *path.resolve().parents[:2]):
        if (folder / "run.json").exists() and (folder / "recipe.toml").exists():
            return folder
    return None


def checkpoints_in(path: Path) -> list[tuple[str, int, Path]]:
    """(stage, step, folder) of each committed checkpoint of the run at `path`, oldest step first."""
    found = []
    root = path / "checkpoints"
    for folder in root.iterdir() if root.is_dir() else ():
        stage, dash, step = folder.name.rpartition("-")
        if dash and step.isdigit() and not folder.name.startswith("."):
            found.append((stage, int(step), folder))
    return sorted(found, key=lambda item: (item[1], item[0]))


def in_use(path: Path) -> bool:
    """Whether a command holds the run at `path` right now."""
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def summary(path: Path) -> dict[str, Any]:
    """How far the run at `path` is: each stage's state, newest checkpoint and newest metrics."""
    facts = read_facts(path)
    newest = {row["stage"]: row for row in read_metrics(path)}
    stages: dict[str, dict[str, Any]] = {}
    for name, entry in facts["stages"].items():
        row = newest.get(name, {})
        stages[name] = {
            "state": "finished" if "finished" in entry else "unfinished",
            "checkpoints": [str(folder) for stage, _, folder in checkpoints_in(path) if stage == name],
            "metrics": {key: value for key, value in row.items() if key not in ("lineage", "stage", "step", "time")},
            "facts": entry.get("facts", {}),
        } | ({"step": row["step"]} if row else {})
    starts = {"lineages": len(facts["lineages"]), "resumes": resumes(facts)}
    return {"run": str(path), "in_use": in_use(path), **starts, "stages": stages}


def resumes(facts: dict[str, Any]) -> int:
    """How often a stage was continued. Every stage of `etude run` is a start of its own, so starts say nothing."""
    return sum(bool(lineage.get("resumed")) for lineage in facts["lineages"])


def stage_of_row(stage: str) -> str:
    """The stage that a kind of row in metrics.jsonl belongs to: `rl.eval` is of `rl`."""
    return stage.partition(".")[0]


def changed_keys(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old, new) for each value that differs; an absent one is None."""
    changes: dict[str, tuple[Any, Any]] = {}
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            changes |= changed_keys(before, after, f"{prefix}{key}.")
        elif before != after:
            changes[f"{prefix}{key}"] = (before, after)
    return changes


def with_defaults(data: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """`data` with the defaults of the keys that it lacks, tables inside it too: it may be older than a setting."""
    filled = defaults | data
    for key, value in defaults.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            filled[key] = with_defaults(data[key], value)
    return filled


def check_recipe(
    path: Path,
    facts: dict[str, Any],
    recipe: dict[str, Any],
    defaults: dict[str, Any] | None = None,
    may_change: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Refuse a recipe that differs from the recorded one in a key that a begun stage has read.

    A default of before in place of the one of now is no difference (renamed.py).
    `may_change` has the keys that a stage takes up anew when it is continued; a finished one does not.
    """
    # Nothing depends on the recipe before a stage has begun.
    if not facts["stages"]:
        return
    recorded, now = read_recipe(path), as_toml(recipe)
    # Of a component the recipe may name another than the default does: the default's keys are none that it lacks.
    differ = [f"{key}." for key in changed_keys(recorded, now)]
    changes = {
        key: change
        for key, change in changed_keys(with_defaults(recorded, as_toml(defaults or {})), now).items()
        if any(f"{key}.".startswith(each) for each in differ) and change != DEFAULTS.get(key)
    }
    free = {
        stage: () if "finished" in entry else (may_change or {}).get(stage, ())
        for stage, entry in facts["stages"].items()
    }
    reads = {stage: entry.get("reads") for stage, entry in facts["stages"].items()}
    refused = {
        key: change
        for key, change in changes.items()
        if any(
            key not in free[stage] and (part is None or any(f"{key}.".startswith(f"{prefix}.") for prefix in part))
            for stage, part in reads.items()
        )
    }
    if refused:
        named = ", ".join(f"{key} ({_show(old)} -> {_show(new)})" for key, (old, new) in refused.items())
        raise EtudeError(
            f"{path} was made with another recipe: {named}; "
            "undo the change, choose another --run, or start over with --fresh"
        )


def as_toml(recipe: dict[str, Any]) -> dict[str, Any]:
    """Plain data as TOML gives it back, so that a tuple in memory equals the list read from a file."""
    return tomllib.loads(tomli_w.dumps(recipe))


def _show(value: Any) -> str:
    return "absent" if value is None else json.dumps(value)

"""Tasks from packages of npm's index: installed or why not, yield, reasons and seconds, by a rule written down first.

The rule (docs/tasks/languages.md): the candidates below, widely used and remembered to carry tests in their archives,
in the order of `random.Random("etude-scripts-1").shuffle(sorted(candidates))`; the first that have at least ten calls
of a test in files written for node:test, tape or mocha are taken. None is left out or replaced afterwards.

    python benchmarks/make_scripts.py --packages 5 --count 10 --out DIR --store DIR [--from deletion,bug] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.forge.install.checkout import open_repo
from etude.forge.install.command import install_repository
from etude.forge.install.install import repositories
from etude.forge.install.javascript.project_facts import read_project
from etude.forge.pipeline.command import make_from
from etude.sandbox.store.layers import Store
from etude.tasks.javascript.test_source import read

CANDIDATES = (
    *("deep-equal", "fast-content-type-parse", "fast-uri", "find-my-way", "flat", "hash.js"),
    *("json-stable-stringify", "minimist", "object-inspect", "qs", "resolve", "secure-json-parse"),
)
LEAST_CALLS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=int, default=5)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--from", dest="origins", default="deletion")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    order = sorted(CANDIDATES)
    random.Random("etude-scripts-1").shuffle(order)
    rows: list[dict[str, Any]] = []
    for name in order:
        if sum(row["qualifies"] for row in rows) == asked.packages:
            break
        row = try_package(name, asked.count, asked.out, asked.store, asked.origins.split(","))
        rows.append(row)
        print(json.dumps(row), flush=True)
    valid = sum(row.get("valid", 0) for row in rows)
    print(json.dumps({"ok": valid > 0, "packages": rows, "valid": valid}) if asked.json else f"{valid} tasks")


def try_package(name: str, count: int, out: Path, store: Path, origins: list[str]) -> dict[str, Any]:
    """What came of one package."""
    started = time.monotonic()
    repo = open_repo(f"npm:{name}", repositories(Store(store)))
    row: dict[str, Any] = {"package": name, "version": repo.version}
    try:
        project = read_project(repo.tree)
    except EtudeError as error:
        return row | {"qualifies": False, "why": str(error)}
    files = [read((repo.tree / path).read_text()) for path in project.tests]
    calls = sum(len(list(file.top.units())) for file in files if file is not None)
    row |= {"framework": project.framework, "calls": calls, "qualifies": calls >= LEAST_CALLS}
    if not row["qualifies"]:
        return row | {"why": f"{calls} calls of a test"}
    found = install_repository(f"npm:{name}", store, None, 300.0, 3600.0)
    row |= {"installed": found["ok"], "why": found["reason"], "tests": found["tests"]}
    row["install_seconds"] = round(time.monotonic() - started)
    if found["ok"]:
        try:
            made = make_from(
                f"npm:{name}", out / name, count, 0, origins, ["terse", "plain", "detailed"], 2, store, None
            )
            row |= {key: made[key] for key in ("tried", "valid", "rejected", "seconds", "spent")}
        except EtudeError as error:
            row |= {"valid": 0, "why": str(error)}
    return row


if __name__ == "__main__":
    main()

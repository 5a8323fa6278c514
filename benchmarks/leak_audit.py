"""How well the leak audit sees: copies in every hiding place, and false alarms on real code.

    python benchmarks/leak_audit.py [--modules 12] [--functions 40] [--json]

Hiding places: functions of modules of the standard library are deleted, and the whole module is hidden in each place
in turn; the bar is that all are found. False alarms: each function of installed packages is deleted in turn,
nothing is hidden, and the rest of the package and other installed packages are searched; what is found in the
environment is a false alarm, what is found next door is listed apart, since near-identical functions of one package
do give each other away. Two more figures: seconds for an environment that is searched for the first time, and after.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etude.forge.leaks.audit import audit_files
from etude.forge.leaks.deleted_code import Deleted
from etude.sandbox.store.layers import Store
from redteam.leaks.hiding_places import HIDING_PLACES
from redteam.leaks.run import functions, run_hiding_places, stubbed

ENVIRONMENT = ("_pytest", "rich", "pygments", "hypothesis", "jinja2", "huggingface_hub", "pydantic", "mypy")
TESTED = ("aiohttp", "attr", "click", "packaging", "typer", "yarl", "multidict", "markdown_it", "pluggy", "frozenlist")
UNWANTED = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", "_vendor")


def alarms(store: Store, each: int, rng: random.Random, work: Path) -> dict[str, Any]:
    site = Path(sysconfig.get_path("purelib"))
    for name in ENVIRONMENT:
        if (site / name).is_dir():
            shutil.copytree(site / name, work / "env" / "lib" / name, ignore=UNWANTED)
    environment = store.add(work / "env", at="/opt/env", shows=())
    tried = 0
    times: list[float] = []
    elsewhere: list[str] = []
    next_door: list[str] = []
    for package in TESTED:
        if not (site / package).is_dir():
            continue
        tree = work / package
        shutil.copytree(site / package, tree / package, ignore=UNWANTED)
        for file, name, text, left in _choices(tree, each, rng):
            source = file.read_bytes()
            file.write_text(left, encoding="utf-8")
            layers = [environment, store.add(tree, shows=())]
            started = time.monotonic()
            found = audit_files(store, layers, [Deleted(str(file.relative_to(tree)), name, text)])
            times.append(time.monotonic() - started)
            file.write_bytes(source)
            tried += 1
            for leak in found[:1]:
                near = leak.place.startswith("/workspace")
                (next_door if near else elsewhere).append(f"{name}: {leak}")
    first, later = times[0], sorted(times[1:])
    return {
        "deleted": tried,
        "false_alarms": elsewhere,
        "next_door": next_door,
        "seconds_first": round(first, 3),
        "seconds_later": round(later[len(later) // 2], 4),
    }


def _choices(tree: Path, most: int, rng: random.Random) -> Iterator[tuple[Path, str, str, str]]:
    found: list[tuple[Path, str, str]] = []
    for file in sorted(tree.rglob("*.py")):
        try:
            source = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [(file, name, text) for name, text in functions(source)]
    rng.shuffle(found)
    for file, name, text in found[:most]:
        left = stubbed(file.read_text(encoding="utf-8"), name)
        if left is not None:
            yield file, name, text, left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=12, help="modules that are hidden everywhere")
    parser.add_argument("--functions", type=int, default=40, help="functions deleted in each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store")
        hidden = run_hiding_places(store, options.modules, rng)
        false = alarms(store, options.functions, rng, Path(folder) / "work")
    result = {"ok": not hidden.missed, "hidden": hidden.facts(), "alarms": false}
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{hidden.caught} of {hidden.tried} hidden copies found, in {len(HIDING_PLACES)} places")
        print(f"{len(false['false_alarms'])} false alarms on {false['deleted']} deleted functions", end=", ")
        print(f"{len(false['next_door'])} with a near-copy in the same package")
        print(f"first search of an environment {false['seconds_first']} s, later {false['seconds_later']} s")
        for line in (*hidden.missed, *false["false_alarms"], *false["next_door"]):
            print(f"    {line}")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""How many packages are installed by the rules alone, by a model alone, and by the model where the rules failed.

    python benchmarks/yield/install_policies.py rules --out yields
    python benchmarks/yield/install_policies.py model --policy runs/mine --out yields
    python benchmarks/yield/install_policies.py both --policy openai:https://host/v1?model=NAME --out yields

Each arm has a store of its own, so that none reads what another has installed. `--packages` takes other ones, Python
(attrs==24.2.0) and JavaScript (npm:qs). A package is tried by `etude env install`, one after the other, with at most
`--seconds` each; about a minute each by the rules on 2 cores. One line of JSON for each package is printed as it comes
and added to OUT/ARM.jsonl; a package that is there already is left alone, so the same command continues.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

PACKAGES = [
    *("attrs==24.2.0", "inflect==7.4.0", "humanize==4.11.0", "python-slugify==8.0.4", "tabulate==0.9.0"),
    *("npm:qs", "npm:semver", "npm:camelcase"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arm", choices=("rules", "model", "both"))
    parser.add_argument("--policy", default="", help="the model: a run, a server's address, openai:URL?model=NAME")
    parser.add_argument("--packages", nargs="*", default=PACKAGES)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if (options.arm == "rules") == bool(options.policy):
        parser.error("rules take no --policy, and the other arms need one")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{options.arm}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for package in options.packages:
        if any(row["package"] == package for row in rows):
            continue
        row = {"package": package, **install(package, options.arm, options.policy, options.seconds, options.out)}
        rows.append(row)
        with file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    print(json.dumps({"arm": options.arm, "installed": sum(row["ok"] for row in rows), "packages": len(rows)}))


def install(package: str, arm: str, policy: str, seconds: float, out: Path) -> dict[str, object]:
    words = [sys.executable, "-m", "etude", "env", "install", package, "--store", str(out / f"store-{arm}"), "--json"]
    words += ["--seconds", str(seconds), *(["--policy", policy] if policy else [])]
    words += ["--rules-first"] if arm == "both" else []
    began = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, timeout=2 * seconds + 300)
    found = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {"ok": False, "error": done.stderr}
    return {
        "ok": found["ok"],
        "reason": found.get("reason") or found.get("error", ""),
        "tests": found.get("tests", {}),
        "tries": len(found.get("tries", [])) + found["ok"],
        "seconds": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    main()

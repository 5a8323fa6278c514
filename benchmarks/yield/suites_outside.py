"""Does a package's suite pass outside of our sandboxes? What fails there as well is not held against the installer.

    python benchmarks/yield/suites_outside.py NAME... --out outside.jsonl --scratch /tmp/outside
    python benchmarks/yield/suites_outside.py NAME --with six --with mock    (more than it names itself)

As somebody would do it by hand: the source distribution unpacked, a new virtual environment of the Python that runs
this script, the package with its test extras and what its requirement files for tests name, then pytest. All of it runs
in bubblewrap as a nobody who may write to the scratch folder alone, and the suite without a network. A suite passes
where pytest ends well; `mostly` is the installer's own measure, nine in ten of the tests and ten at least.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, Final

INSTALL_SECONDS: Final = 900
SUITE_SECONDS: Final = 900
FILES: Final = re.compile(r"([^/]+/)?[^/]*(test|dev)[^/]*\.txt")  # of requirements
EXTRAS: Final = "import importlib.metadata as m, sys; print(*m.metadata(sys.argv[1]).get_all('Provides-Extra') or ())"
COUNT: Final = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)")


def contained(words: list[str], scratch: Path, seconds: float, *, network: bool) -> tuple[int, str]:
    """A command in bubblewrap: its exit status, and the end of what it said."""
    cell = [
        "bwrap",
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--tmpfs",
        "/tmp",
        "--bind",
        str(scratch),
    ]
    cell += [str(scratch), "--unshare-user", "--uid", "65534", "--unshare-pid", "--unshare-ipc", "--die-with-parent"]
    cell += [] if network else ["--unshare-net"]
    cell += ["--setenv", "HOME", str(scratch), "--chdir", str(scratch / "tree")]
    try:
        done = subprocess.run([*cell, *words], capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return 124, f"it took more than {seconds:g} s"
    return done.returncode, (done.stdout + done.stderr)[-6000:]


def try_suite(name: str, scratch: Path, also: list[str]) -> dict[str, Any]:
    folder = scratch / name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "tree").mkdir(parents=True)
    python = str(folder / "venv/bin/python")
    pip = [python, "-m", "pip", "install", "-q"]

    def step(words: list[str], seconds: float = INSTALL_SECONDS, *, network: bool = True) -> tuple[int, str]:
        return contained(words, folder, seconds, network=network)

    fetch = [
        python,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        str(folder / "sdist"),
        name,
    ]
    for words in ([sys.executable, "-m", "venv", str(folder / "venv")], fetch):
        code, said = step(words)
        if code:
            return {"package": name, "passes": False, "reason": f"cannot be fetched: {said[-300:]}"}
    archive = next((folder / "sdist").glob("*.tar.gz"))
    with tarfile.open(archive) as file:
        file.extractall(folder / "unpacked", filter="data")
    (folder / "tree").rmdir()
    next((folder / "unpacked").iterdir()).rename(folder / "tree")
    code, said = step([*pip, "pytest", "setuptools", *also, "."])
    if code:
        return {"package": name, "passes": False, "reason": f"cannot be installed: {said[-300:]}"}
    notes = []
    extras = [each for each in step([python, "-c", EXTRAS, name])[1].split() if re.search("test|dev", each)]
    extras = [each for each in extras if step([*pip, f".[{each}]"])[0] == 0]
    for path in sorted((folder / "tree").rglob("*.txt")):
        if FILES.fullmatch(str(path.relative_to(folder / "tree"))) and step([*pip, "-r", str(path)])[0]:
            notes.append(f"{path.name} cannot be installed")
    code, said = step([python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], SUITE_SECONDS, network=False)
    last = said.strip().splitlines()[-1] if said.strip() else ""
    counts = {kind.rstrip("s"): int(number) for number, kind in COUNT.findall(last)}
    passed, wrong = counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0)
    return {
        "package": name,
        "passes": code == 0 and passed > 0,
        "mostly": passed >= 10 and passed >= 0.9 * (passed + wrong),
        "counts": counts,
        "said": last if counts else said[-500:],
        "extras": extras,
        "notes": notes,
    }


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("names", nargs="+")
    given.add_argument("--out", type=Path, default=Path("outside.jsonl"))
    given.add_argument("--scratch", type=Path, default=Path("/tmp/outside"))
    given.add_argument("--with", action="append", default=[], dest="also", metavar="REQUIREMENT")
    options = given.parse_args()
    for name in options.names:
        row = try_suite(name, options.scratch.resolve(), options.also) | (
            {"with": options.also} if options.also else {}
        )
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

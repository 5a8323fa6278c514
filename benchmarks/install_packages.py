"""Installs thirty real packages, drawn by the rule of docs/tasks/install.md, and writes what came of each.

    python benchmarks/install_packages.py --out install.json           (all thirty, one after the other)
    python benchmarks/install_packages.py --out install.json --only 5  (the first five of the draw)
    python benchmarks/install_packages.py --list                       (the draw, with why others were passed over)

What was written stays: a second call goes on where the first ended, `--again` tries the failures once more.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.forge.install.checkout import Repo, open_repo
from etude.forge.install.command import install_repository
from etude.forge.install.install import repositories
from etude.forge.install.pip_settings import read_index
from etude.sandbox.store.layers import Store, default_store

CANDIDATES = """
anytree arrow asteval attrs bidict blinker boltons bottle cachetools cattrs cerberus click croniter cssselect dacite
deepdiff dpath emoji filelock furl glom h11 h2 hpack humanize hyperlink idna inflect inflection intervaltree isodate
itsdangerous jinja2 jmespath jsonpatch jsonpointer jsonschema lark mako markdown marshmallow mistune more-itertools
natsort networkx oauthlib packaging parse parsimonious parso pathspec platformdirs pluggy prettytable pyasn1 pydash
pyflakes pyjwt pyparsing python-dateutil python-dotenv python-slugify requests schedule semver simpleeval
sortedcontainers soupsieve sqlparse structlog tabulate tenacity tinydb tomli tomlkit toolz transitions typeguard
uritemplate urllib3 validators voluptuous wcwidth webcolors werkzeug wtforms xmltodict zipp
""".split()  # noqa: SIM905
SEED = "etude-install-1"
WANTED = 30
FEWEST_TESTS = 10
COMPILED = re.compile(r".*\.(c|pyx|rs|cpp|cc)")
APART = re.compile(r"(^|/)(tests?|testing|docs?|examples?)/")
TEST_FILE = re.compile(r"(.*/)?(test_[^/]*|[^/]*_test|tests)\.py")
TEST = re.compile(r"^\s*(?:async )?def test\w*\(", re.MULTILINE)


def order() -> list[str]:
    names = sorted(CANDIDATES)
    random.Random(SEED).shuffle(names)
    return names


def why_passed_over(repo: Repo) -> str:
    """Why a package is not one of the thirty, from its files alone; nothing where it is."""
    paths = [str(path.relative_to(repo.tree)) for path in sorted(repo.tree.rglob("*")) if path.is_file()]
    if compiled := [path for path in paths if COMPILED.fullmatch(path) and not APART.search(path)]:
        return f"compiled: {compiled[0]}"
    files = [repo.tree / path for path in paths if TEST_FILE.fullmatch(path)]
    tests = sum(len(TEST.findall(file.read_text(errors="replace"))) for file in files)
    return f"{tests} tests in its source distribution" if tests < FEWEST_TESTS else ""


def draw(store: Store) -> Iterator[tuple[str, str]]:
    """Names in the drawn order, each with why it is passed over, until thirty were not."""
    index, left = read_index(), WANTED
    for name in order():
        try:
            why = why_passed_over(open_repo(name, repositories(store), index=index))
        except EtudeError as error:
            why = f"no source distribution: {error}"
        yield name, why
        left -= not why
        if not left:
            return


def lines_of(repo: Repo) -> int:
    """Lines of Python outside tests, to tell which are of medium size."""
    files = [path for path in repo.tree.rglob("*.py") if not APART.search(str(path.relative_to(repo.tree)))]
    return sum(file.read_text(errors="replace").count("\n") for file in files)


def attempt(name: str, store: Store, suite_seconds: float, seconds: float) -> dict[str, Any]:
    started = time.monotonic()
    try:
        found = install_repository(name, store.root, None, suite_seconds, seconds)
    except EtudeError as error:
        found = {"ok": False, "reason": str(error)}
    keys = ("ok", "version", "tests", "reason", "tries", "notes", "verified", "digest", "seconds", "cached")
    row = {key: found[key] for key in keys if key in found}
    repo = open_repo(name, repositories(store))
    return row | {"lines": lines_of(repo), "wall": round(time.monotonic() - started, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("install.json"))
    parser.add_argument("--only", type=int, default=WANTED, help="the first so many of the draw")
    parser.add_argument("--again", action="store_true", help="try failures once more")
    parser.add_argument("--list", action="store_true", help="only draw")
    parser.add_argument("--store", type=Path, default=None)
    parser.add_argument("--suite-seconds", type=float, default=300.0)
    parser.add_argument("--seconds", type=float, default=1800.0)
    given = parser.parse_args()
    store = Store(given.store or default_store())
    done: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"passed_over": {}, "rows": {}}
    for name, why in draw(store):
        if why:
            done["passed_over"][name] = why
            continue
        row = done["rows"].get(name)
        if not given.list and len(done["rows"]) < given.only and (row is None or (given.again and not row["ok"])):
            row = done["rows"][name] = attempt(name, store, given.suite_seconds, given.seconds)
        print(
            name, "-" if row is None else json.dumps({key: row.get(key) for key in ("ok", "tests", "wall", "reason")})
        )
        done["installed"] = sum(each["ok"] for each in done["rows"].values())
        done["tried"] = len(done["rows"])
        given.out.write_text(json.dumps(done, indent=1) + "\n")
    print(f"{done.get('installed', 0)} of {done.get('tried', 0)} installed")


if __name__ == "__main__":
    main()

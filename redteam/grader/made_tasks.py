"""A task as they are made from a repository, without one: a small package that is written here.

Its environment has the pytest of this interpreter and nothing else, so nothing is installed and no network is used.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from etude.core.settings import GraderSettings
from etude.forge.environments.environment import PREFIX, Environment, Suite, environment_digest
from etude.sandbox.base import Layer
from etude.sandbox.hosts import StoringHost
from etude.sandbox.store.importing import Bounds
from etude.sandbox.store.layers import Store
from etude.tasks.format.config import Config, Facts, Installed
from etude.tasks.format.file_tree import Files
from etude.tasks.format.function_bodies import replace_bodies
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.submission import submission_of
from etude.tasks.grading.withheld.record import with_answers

LIMITS = GraderSettings(seconds=30, memory_mb=512, disk_mb=64)

TALLY = '''"""Amounts and sums."""


def spell(number):
    """Return a number in Roman letters."""
    found = ""
    for value, letters in ((10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")):
        while number >= value:
            found, number = found + letters, number - value
    return found


def checksum(text):
    """Return a number below 9973 that two texts seldom share."""
    total = 7
    for each in text:
        total = (total * 31 + ord(each)) % 9973
    return total


def split_amount(text):
    """Return cents and currency of a text such as "12.50 EUR"."""
    number, _, currency = text.strip().partition(" ")
    units, _, rest = number.partition(".")
    if not units.isdigit() or len(currency) != 3:
        raise ValueError(f"no amount: {text!r}")
    return int(units) * 100 + int((rest + "00")[:2]), currency.upper()
'''
SHOWN = """import pytest

from tally import checksum, spell, split_amount


def test_checksum():
    assert checksum("ab") == 27


def test_amount():
    assert split_amount("12.50 EUR") == (1250, "EUR")


def test_spell():
    assert spell(14) == "XIV"
"""
HIDDEN = """

@pytest.mark.parametrize("text, expected", [("order", 2941), ("receipt", 5530), ("Zürich", 8052)])
def test_more_checksums(text, expected):
    assert checksum(text) == expected


def test_whole_amounts():
    wanted = [(700, "USD"), (1990, "CHF")]
    assert [split_amount("7 usd"), split_amount(" 19.9 CHF ")] == wanted


def test_no_amount():
    with pytest.raises(ValueError, match="no amount: 'seven'"):
        split_amount("seven")


def test_longer_numbers():
    assert spell(38) == "XXXVIII"
    assert not spell(0)
    assert spell(9).startswith("I")
"""
DELETED = ("checksum", "split_amount", "spell")


def bare_pytest_layer(
    store: Store, more: Mapping[str, str] | None = None, *, shows: Sequence[str] | None = None
) -> Layer:
    """What `etude env install` makes of a repository without dependencies, made by hand: pytest and nothing else.

    `more` are files beside pytest, `shows` the host's folders, all of the system where none are given.
    """
    minor = sys.version_info.minor
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        packages = tree / f"lib/python3.{minor}/site-packages"
        for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
            found = importlib.util.find_spec(name)
            assert found is not None and found.origin is not None
            shutil.copytree(Path(found.origin).parent, packages / name)
        shutil.copy2(Path(pytest.__file__).parents[1] / "py.py", packages)
        for path, text in (more or {}).items():
            (packages / path).parent.mkdir(exist_ok=True)
            (packages / path).write_text(text)
        (tree / "bin").mkdir()
        (tree / "bin/python").symlink_to(Path(sys.base_prefix) / f"bin/python3.{minor}")
        (tree / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\ninclude-system-site-packages = false\n")
        return store.add(tree, at=PREFIX, shows=shows, bounds=Bounds(link_loops=True))


def pytest_environment(store: Store, more: Mapping[str, str] | None = None) -> str:
    """An environment with the pytest of this interpreter and these files among its packages: its digest."""
    layer = bare_pytest_layer(store, more)
    suite = Suite("pytest", ())
    digest = environment_digest(layer, "", ("", "src"), suite, {})
    Environment("pytest", "", digest, layer, f"{PREFIX}/bin/python", ("", "src"), suite, "").save(store.root)
    return digest


def small_task(store: Store, more: str = "") -> Task:
    """The small package without its functions, and tests that hold their answers still. `more` is further tests, all of
    them held out."""
    namespace: dict[str, object] = {}
    exec(TALLY, namespace)
    checksum = namespace["checksum"]
    assert callable(checksum)
    hidden, shown = HIDDEN + more, SHOWN.replace("== 27", f"== {checksum('ab')}")
    for word, number in (("order", 2941), ("receipt", 5530), ("Zürich", 8052)):
        hidden = hidden.replace(str(number), str(checksum(word)))
    before = replace_bodies(TALLY, dict.fromkeys(DELETED, "raise NotImplementedError"))
    files = {
        f"{WORKSPACE}/tally.py": before,
        f"{WORKSPACE}/tests/test_tally.py": shown,
        f"{TESTS}/tests/test_tally.py": shown + hidden,
        f"{SOLUTION}/tally.py": TALLY,
    }
    rows = [f"test_more_checksums[{word}-{checksum(word)}]" for word in ("order", "receipt")]
    further = re.findall(r"^def (test\w+)", more, re.MULTILINE)
    facts = Facts(
        suite="pytest",
        fail_to_pass=[f"tests/test_tally.py::test_{name}" for name in ("checksum", "amount", "spell")],
        held_out=[
            f"tests/test_tally.py::{name}"
            for name in (*rows, "test_whole_amounts", "test_no_amount", "test_longer_numbers", *further)
        ],
        allowed_paths=["*.py"],
        deleted=[f"tally.py:{name}" for name in DELETED],
        environment=Installed(digest=pytest_environment(store), paths=["", "src"]),
    )
    return Task("tally", "Write it.", Config(), facts, Files({path: text.encode() for path, text in files.items()}))


async def recorded_small_task(host: StoringHost, more: str = "") -> Task:
    task = small_task(host.store, more)
    return await with_answers(GradeJob(task, host, submission_of(task, task.reference), LIMITS))

"""`make redteam`: every suite is run, what was missed fails the command, and the package never needs the attacks."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from redteam import __main__ as command
from redteam.leaks.hiding_places import HIDING_PLACES
from redteam.leaks.run import run_hiding_places
from redteam.result import SuiteResult

ROOT = Path(__file__).parents[2]


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> dict[str, SuiteResult]:
    """Suites that attack nothing."""
    found = {"first": SuiteResult("first", tried=3), "second": SuiteResult("second", tried=2, missed=["a hole"])}

    def stand_in(result: SuiteResult) -> Any:
        async def run(host: Any) -> SuiteResult:
            return result

        return run

    monkeypatch.setattr(command, "SUITES", {name: stand_in(result) for name, result in found.items()})
    return found


def test_what_was_missed_fails_the_command(suites: dict[str, SuiteResult], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--json"]) == 1
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not said["ok"] and [each["caught"] for each in said["suites"]] == [3, 1]
    assert said["suites"][1]["missed"] == ["a hole"]
    assert command.main(["--only", "first"]) == 0
    assert "3 of 3 caught" in capsys.readouterr().out


def test_a_suite_that_tried_nothing_or_accused_the_honest_is_not_right() -> None:
    assert not SuiteResult("empty").ok
    assert not SuiteResult("harsh", tried=1, false_alarms=["honest work"]).ok
    assert not SuiteResult("blunt", tried=1, broken=["a probe that finds nothing"]).ok


def test_a_module_hidden_in_each_place_is_found_in_all(tmp_path: Path) -> None:
    from etude.sandbox.store.layers import Store

    result = run_hiding_places(Store(tmp_path))
    assert result.tried == len(HIDING_PLACES) and result.missed == []


def test_the_package_neither_holds_nor_imports_the_attacks() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert built["packages"] == ["etude"]
    importing = re.compile(r"^\s*(from|import) redteam\b", re.MULTILINE)
    assert [str(path) for path in (ROOT / "etude").rglob("*.py") if importing.search(path.read_text())] == []

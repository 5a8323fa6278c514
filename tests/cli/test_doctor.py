import json
import sys
from pathlib import Path

import pytest

from etude.cli import doctor
from etude.cli.doctor import examine


def test_every_row_has_a_state_and_whatever_is_not_well_has_advice(tmp_path: Path):
    rows = examine(tmp_path)
    names = [row.what for row in rows]
    assert len(names) == len(set(names))
    assert {"python", "torch", "cores", "disk", "git"} <= set(names)
    for row in rows:
        assert row.found and (row.state == "ok" or row.advice), row


def test_a_folder_that_does_not_exist_yet_is_judged_by_its_parent(tmp_path: Path):
    rows = {row.what: row for row in examine(tmp_path / "runs" / "nano")}
    assert str(tmp_path) in rows["disk"].found
    assert not (tmp_path / "runs").exists()


def test_missing_torch_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    rows = {row.what: row for row in doctor._compute()}
    assert rows["torch"].state == "missing" and rows["torch"].needed and "pip install" in rows["torch"].advice


def test_refused_namespaces_are_reported_with_the_kernels_words(monkeypatch: pytest.MonkeyPatch):
    answer = dict.fromkeys(("user", "mount", "pid", "net", "overlay"), "Operation not permitted")
    monkeypatch.setattr(doctor, "_output", lambda command: json.dumps(answer))
    rows = {row.what: row for row in doctor._isolation()}
    for name in ("user namespaces", "net namespaces", "overlayfs"):
        assert rows[name].state != "ok" and rows[name].found == "Operation not permitted" and rows[name].advice


def test_a_child_that_says_nothing_is_not_taken_for_a_yes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "_output", lambda command: "")
    assert all(row.state != "ok" for row in doctor._isolation() if "namespaces" in row.what)
    assert next(doctor._programs()).state == "missing"

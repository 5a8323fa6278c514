"""Nothing gets out, and the machine is unharmed: every scenario of `escapes.py`, as root and as an ordinary user."""

from __future__ import annotations

import json
from typing import Any

import pytest

SCENARIOS = [
    "network",
    "host_files",
    "other_processes",
    "daemon_outlives_timeout",
    "fork_bomb",
    "memory",
    "disk_fill",
    "links_out",
    "proc_tricks",
    "nested_namespaces",
    "denied_calls",
    "privileges",
    "hostile_names_and_depth",
    "output_flood",
]


@pytest.fixture(scope="module")
def findings(identity: Any) -> dict[str, list[str]]:
    """All scenarios in one process of this user: starting one for each would take longer than they do."""
    process = identity.start("escapes.py", identity.folder)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    found: dict[str, list[str]] = json.loads(out)
    assert sorted(found) == sorted(SCENARIOS)
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_attempt_succeeds(findings: dict[str, list[str]], scenario: str) -> None:
    assert findings[scenario] == []

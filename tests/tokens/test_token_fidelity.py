"""Render -> sample -> parse, some hundred trajectories of the 10,000 that the benchmark does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "token_fidelity.py"


def test_random_trajectories_lose_no_token_and_no_byte() -> None:
    command = [sys.executable, str(SCRIPT), "--trajectories", "400", "--seed", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["faults"] == {}
    assert facts["trajectories"] == 400
    assert facts["malformed_turns"] > 50
    assert facts["other_tokenisations"] > 100
    assert facts["argument_bytes"] > 10_000

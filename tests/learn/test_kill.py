"""A run that is killed and started again ends with the bits of one that was left alone: the benchmark, in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("warm_programs")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "resume_kill.py"


def test_killed_pretraining_continues_to_the_same_bits() -> None:
    command = [sys.executable, str(SCRIPT), "--kills", "2", "--steps", "24", "--threads", "1", "--seed", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["ok"] and result["kills"] == 2 and result["different"] == []

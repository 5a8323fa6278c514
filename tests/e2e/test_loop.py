"""The whole way on a toy: raw code to a benchmarked agent and its report, through the real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("warm_children")
RECIPE = """
extends = "nano"

[run]
threads = 1

[model]
depth = 2

[corpus]
sources = [{ use = "stdlib", weight = 0.3 }, { use = "katas", weight = 0.7, count = 150, invented = 0.7 }]
max_bytes = 120_000

[tokens]
vocab_size = 400
train_bytes = 60_000

[pretrain]
steps = 6

[demos]
count = 6

[sft]
epochs = 1

[rl]
first_task = 6
steps = 2
groups = 2
group = 2
concurrency = 4
seconds = 0.0
eval_every = 2
eval_tasks = 2
save_every = 1
probe_tokens = 64

[bench]
count = 2
samples = 4
unseen_count = 1
sft_more = true
"""
ARM = {"pass@1", "pass@4", "tokens", "format_errors"}


def start(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which leaves nothing in the temporary folder that it is given."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "etude", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


def test_one_command_goes_from_raw_code_to_a_report(
    tmp_path: Path, etude: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    (tmp_path / "toy.toml").write_text(RECIPE)
    done = start("run", "toy.toml", "--run", "run", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "run"

    results = json.loads((run / "results.json").read_text())
    assert results.keys() >= {"sft", "rl", "paired_gain", "seconds", "numerics", "void", "seed"}
    for arm in ("sft", "rl"):
        assert results[arm].keys() >= ARM and len(results[arm]["pass@1"]) == 3
    assert 0 <= results["numerics"]["mean"] < 1e-5 and 0 < results["numerics"]["max"] < 1e-3
    assert "sft-more" in results["arms"]
    stages = json.loads((run / "run.json").read_text())["stages"]
    assert all("finished" in stage for stage in stages.values()), stages
    assert "<html" in (run / "report.html").read_text()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["stage"] == "rl"]
    assert [row["step"] for row in trained] == [1, 2] and all(row["rollouts"] == 4 for row in trained)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("etude-")]

    again = etude("run", "toy.toml", "--run", "run", "--json")
    assert again.returncode == 0 and json.loads((run / "results.json").read_text()) == results
    changed = etude("rl", "toy.toml", "rl.group=3", "--run", "run")
    assert changed.returncode == 2 and "rl.group" in changed.stderr and "Traceback" not in changed.stderr
    resumed = etude("resume", "run")
    assert resumed.returncode == 0 and "nothing left to do" in resumed.stdout
    watched = etude("chat", "run", "--json")
    assert watched.returncode == 0 and "passed" in json.loads(watched.stdout.splitlines()[-1])
    benched = etude("bench", "run", "--against", "run/bench/sft.json", "--json")
    assert benched.returncode == 0 and len(json.loads(benched.stdout.splitlines()[-1])["gain"]) == 3

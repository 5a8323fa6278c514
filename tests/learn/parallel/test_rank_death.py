"""A rank that is killed: all ranks end with one sentence, and the run continues exactly from its last checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.scale import layouts
from etude.core.run import Run
from etude.learn.parallel.launch import Ranks
from etude.learn.parallel.layout import Layout

pytestmark = pytest.mark.usefixtures("warm_programs")
LAYOUT = Layout(3, 1, 3)
PROGRAM = """
import os, sys
from pathlib import Path
from benchmarks.scale import layouts
from etude.core.errors import EtudeError
from etude.learn.parallel.launch import Ranks
from etude.learn.parallel.layout import Layout
try:
    with Ranks(3) as ranks:
        print(os.getpid(), *(process.pid for process in ranks.processes.values()), flush=True)
        learner = layouts.open_ranks(ranks, "dense", Layout(3, 1, 3))
        for step in range(100000):
            learner.forward_backward(layouts.batch(step, "dense"))
            learner.step()
            if step == 2:
                learner.save(Path(sys.argv[1]))
            print(step, flush=True)
except EtudeError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
"""

BESIDE = """
import os, sys
from pathlib import Path
from benchmarks.scale import layouts
from etude.core.errors import EtudeError
from etude.core.run import Run
from etude.learn.loop import Draw, train
from etude.learn.parallel.launch import Ranks
from etude.learn.parallel.layout import Layout
settings = {"run": {"save_in_background": True, "keep_checkpoints": 9}}
try:
    with Run.open(Path(sys.argv[1]), settings) as run, Ranks(3) as ranks:
        print(os.getpid(), *(process.pid for process in ranks.processes.values()), flush=True)
        learner = layouts.open_ranks(ranks, "dense", Layout(3, 1, 3))
        draw = lambda: Draw(layouts.batch(learner.steps, "dense"), 1, 1)
        train(run, "pretrain", learner, draw, lambda directory: None, save_every=2)
except EtudeError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
"""

# In every process before its own program: of step 4 a rank writes half of its first file, says so, and is stuck.
STUCK = """
import os, threading
from pathlib import Path
import safetensors.torch
whole = safetensors.torch.save_file
def save_file(tensors, path, metadata=None):
    whole(tensors, path, metadata=metadata)
    if "0000004" in str(path):
        data = Path(path).read_bytes()
        Path(path).write_bytes(data[: len(data) // 2])
        Path(os.environ["STUCK"], str(os.getpid())).touch()
        threading.Event().wait()
safetensors.torch.save_file = save_file
"""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(3) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def undisturbed(ranks: Ranks) -> dict[str, torch.Tensor]:
    return weights(ranks, None)


def test_all_ranks_end_when_one_is_killed_and_the_run_continues(
    tmp_path: Path, ranks: Ranks, undisturbed: dict[str, torch.Tensor]
) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert run.stdout is not None
    try:
        pids = [int(pid) for pid in run.stdout.readline().split()]
        for line in run.stdout:
            if line.strip() == "4":
                break
        else:
            raise AssertionError(f"it ended before its time: {run.communicate()[1]}")
        os.kill(pids[2], signal.SIGKILL)
        _, errors = run.communicate(timeout=120)  # 30 s are promised; a busy machine gets more
    finally:
        run.kill()
    assert run.returncode == 2, errors
    sentence = errors[errors.index("error: rank ") :]  # torch may have warned before, in words of its own
    assert sentence.startswith("error: rank 2 of the learner was ended by SIGKILL")
    assert "Traceback" not in sentence and "the same command continues from the last checkpoint" in sentence
    assert gone(pids[1], seconds=60)
    continued = weights(ranks, tmp_path)
    for name, weight in undisturbed.items():
        assert torch.equal(weight, continued[name]), name


@pytest.mark.usefixtures("cold_children")
def test_a_rank_that_is_killed_while_a_checkpoint_is_written_beside_training_leaves_the_one_before(
    tmp_path: Path, ranks: Ranks, undisturbed: dict[str, torch.Tensor]
) -> None:
    stuck, before = tmp_path / "stuck", tmp_path / "before"
    for folder in (stuck, before):
        folder.mkdir()
    (before / "sitecustomize.py").write_text(STUCK)
    path = f"{before}{os.pathsep}{Path(__file__).parents[3]}"
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "STUCK": str(stuck)}
    command, pipe = [sys.executable, "-c", BESIDE, str(tmp_path / "run")], subprocess.PIPE
    run = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
    assert run.stdout is not None
    try:
        pids = [int(pid) for pid in run.stdout.readline().split()]
        end = time.monotonic() + 300
        while not all((stuck / str(pid)).exists() for pid in pids):
            assert run.poll() is None and time.monotonic() < end, run.communicate()[1]
            time.sleep(0.05)
        os.kill(pids[1], signal.SIGKILL)
        _, errors = run.communicate(timeout=300)  # 30 s are promised; a busy machine gets more
    finally:
        run.kill()
    assert run.returncode == 2, errors
    assert "error: rank 1 of the learner was ended by SIGKILL" in errors
    assert gone(pids[2], seconds=60)
    with Run.open(tmp_path / "run", {"run": {"save_in_background": True, "keep_checkpoints": 9}}) as again:
        assert [again.step_of(path) for path in again.checkpoints("pretrain")] == [2], "that of step 4 was never whole"
        continued = weights(ranks, again.latest("pretrain"))
    for name, weight in undisturbed.items():
        assert torch.equal(weight, continued[name]), name


def weights(ranks: Ranks, start: Path | None) -> dict[str, torch.Tensor]:
    """After five steps, from the beginning or from a checkpoint."""
    learner = layouts.open_ranks(ranks, "dense", LAYOUT)
    if start is not None:
        learner.restore(start)
    for step in range(learner.steps, 5):
        learner.forward_backward(layouts.batch(step, "dense"))
        learner.step()
    found = learner.whole_weights()
    learner.close()
    return found


def gone(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True  # ended; whoever took it over has not looked yet
        except OSError:
            return True
        time.sleep(0.1)
    return False

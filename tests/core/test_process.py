import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from etude.core import process


def test_prepare_flushes_denormals_and_sets_threads():
    check = """
from etude.model.torch_process import prepare
assert prepare(threads=1) == 1
import torch
assert torch.get_num_threads() == 1
assert (torch.tensor([1e-40]) * 1.0).item() == 0.0
"""
    assert subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode == 0


def test_all_cores_are_those_we_may_use():
    assert 1 <= process.available_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("switch", "groups", "found"),
    [
        ("1\n", "3:cpuset:/x\n1:cpu,cpuacct:/\n0::/\n", True),
        ("1\n", "1:cpu,cpuacct:/docker/4\n0::/\n", False),
        ("0\n", "1:cpu:/\n", False),
        ("1\n", "0::/user.slice\n", False),
        ("1\n", "nonsense", False),
    ],
)
def test_cores_are_shared_by_session_outside_of_control_groups(
    switch: str, groups: str, found: bool, monkeypatch: pytest.MonkeyPatch
):
    texts = {"/proc/sys/kernel/sched_autogroup_enabled": switch, "/proc/self/cgroup": groups}
    monkeypatch.setattr(Path, "read_text", lambda path: texts[str(path)])
    assert process.shared_by_session() is found


def test_an_allocator_without_mallopt_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    process.keep_freed_memory()
    process.stay_small()


def test_large_blocks_between_small_ones_are_returned_to_the_system():
    check = """
from pathlib import Path
from etude.core.process import stay_small

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024

stay_small()
bytes(1 << 20)  # a large block that is freed: from now on glibc would take such from the heap
before = megabytes()
large = [b"x" * 100_000 for _ in range(400)]
small = []
for number in range(400):
    small.append(b"x" * 1_000)
    large[number] = b"y" * 100_000  # between two that stay
assert megabytes() - before > 30
large.clear()
assert megabytes() - before < 5, megabytes() - before
"""
    assert subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(("load", "policy"), [(0.1, None), (100.0, "PASSIVE")])
def test_waiting_threads_sleep_only_beside_other_work(monkeypatch: pytest.MonkeyPatch, load: float, policy: str | None):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    process.let_waiting_threads_sleep()
    assert os.environ.get("OMP_WAIT_POLICY") == policy
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    process.let_waiting_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"  # the user's own choice stands

import ctypes
import os
import subprocess
import sys

import pytest

from etude import process


def test_prepare_flushes_denormals_and_sets_threads():
    check = """
from etude.process import prepare
assert prepare(threads=1) == 1
import torch
assert torch.get_num_threads() == 1
assert (torch.tensor([1e-40]) * 1.0).item() == 0.0
"""
    assert subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode == 0


def test_all_cores_are_those_we_may_use():
    assert 1 <= process.available_cores() <= (os.cpu_count() or 1)


def test_an_allocator_without_mallopt_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    process.keep_freed_memory()


@pytest.mark.parametrize(("load", "policy"), [(0.1, None), (100.0, "PASSIVE")])
def test_waiting_threads_sleep_only_beside_other_work(monkeypatch: pytest.MonkeyPatch, load: float, policy: str | None):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    process.let_waiting_threads_sleep()
    assert os.environ.get("OMP_WAIT_POLICY") == policy
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    process.let_waiting_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"  # the user's own choice stands

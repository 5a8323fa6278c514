"""Finding and writing control groups, in both versions of the kernel's interface, on folders that look like them.

That a group really holds its limit is shown by the escapes, on whichever version the machine has.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from etude.sandbox.base import SandboxLimits
from etude.sandbox.local.cgroups import Cgroups, oom_kills, places

HYBRID_GROUPS = """9:name=systemd:/
8:pids:/
4:memory:/outer/inner
2:cpu,cpuacct:/
0::/
"""


def _mount(point: Path | str, kind: str, options: str = "rw", root: str = "/") -> str:
    return f"31 25 0:27 {root} {point} rw,nosuid shared:4 - {kind} {kind} {options}\n"


def _unified(folder: Path, controllers: str, handed_down: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.controllers").write_text(controllers)
    (folder / "cgroup.subtree_control").write_text(handed_down)


def test_version_1_groups_lie_below_our_own_in_each_hierarchy() -> None:
    mounts = "".join(_mount(f"/cg/{name}", "cgroup", f"rw,{name}") for name in ("memory", "pids", "cpu,cpuacct"))
    found = places(HYBRID_GROUPS, mounts + _mount("/cg/unified", "cgroup2"))
    assert found == [
        (1, {"memory": Path("/cg/memory/outer/inner"), "pids": Path("/cg/pids"), "cpu": Path("/cg/cpu,cpuacct")})
    ]


def test_in_version_2_the_nearest_group_that_hands_its_controllers_down_is_taken(tmp_path: Path) -> None:
    _unified(tmp_path, "cpu memory pids", "cpu memory pids")
    _unified(tmp_path / "user.slice", "cpu memory pids", "memory pids")
    _unified(tmp_path / "user.slice" / "session.scope", "memory pids", "")
    (tmp_path / "user.slice" / "session.scope" / "cgroup.subtree_control").chmod(0o400)
    found = places("0::/user.slice/session.scope\n", _mount(tmp_path, "cgroup2"))
    assert [version for version, _ in found] == [2] * len(found)
    tried = [parents["memory"] for _, parents in found]
    assert tried[-2:] == [tmp_path / "user.slice", tmp_path]
    assert found[-1][1].keys() == {"memory", "pids", "cpu"}


def test_a_container_sees_its_groups_from_its_own_root(tmp_path: Path) -> None:
    _unified(tmp_path, "memory pids", "memory pids")
    found = places("0::/docker/abc\n", _mount(tmp_path, "cgroup2", root="/docker/abc"))
    assert found == [(2, {"memory": tmp_path, "pids": tmp_path})]


def test_without_controllers_there_is_no_place(tmp_path: Path) -> None:
    _unified(tmp_path, "hugetlb", "")
    assert places("0::/\n", _mount(tmp_path, "cgroup2")) == []
    assert places("", "") == []


def test_limits_are_written_in_each_versions_own_words(tmp_path: Path) -> None:
    group = Cgroups(2, dict.fromkeys(("memory", "pids", "cpu"), tmp_path)).make(1000, 50, 1.5)
    (folder,) = group.folders
    written = {path.name: path.read_text() for path in folder.iterdir()}
    limits = {"memory.max": "1000", "memory.swap.max": "0", "pids.max": "66", "cpu.max": "150000 100000"}
    assert written == limits
    assert group.oom_file == folder / "memory.events"
    for name in ("memory", "pids", "cpu"):
        (tmp_path / name).mkdir()
    group = Cgroups(1, {name: tmp_path / name for name in ("memory", "pids", "cpu")}).make(1000, 50, 0.5)
    assert len(group.folders) == 3
    assert (tmp_path / "memory/1/memory.limit_in_bytes").read_text() == "1000"
    assert (tmp_path / "pids/1/pids.max").read_text() == "66"
    assert (tmp_path / "cpu/1/cpu.cfs_quota_us").read_text() == "50000"
    assert group.oom_file == tmp_path / "memory/1/memory.oom_control"


def test_processors_are_left_alone_unless_a_limit_is_asked_for(tmp_path: Path) -> None:
    for name in ("memory", "pids", "cpu"):
        (tmp_path / name).mkdir()
    group = Cgroups(1, {name: tmp_path / name for name in ("memory", "pids", "cpu")}).make(1000, 50, 0.0)
    assert group.folders == (tmp_path / "memory/1", tmp_path / "pids/1")


def test_kills_are_counted_from_either_versions_file() -> None:
    assert oom_kills(b"low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n") == 2
    assert oom_kills(b"oom_kill_disable 0\nunder_oom 0\noom_kill 5\n") == 5
    assert oom_kills(b"") == 0


def test_a_share_of_a_processor_is_held_where_a_group_can_hold_it(local: Any) -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass"

    async def seconds(cpus: float) -> float:
        async with await local.host.start([local.layer], limits=SandboxLimits(cpus=cpus)) as sandbox:
            result = await sandbox.run([sys.executable, "-I", "-S", "-c", code])
            assert result.code == 0, result.stderr
            return float(result.seconds)

    if local.host.capabilities.memory == "watch":
        assert local.run(seconds(0.25)) > 0  # asked for and not to be had: the program runs all the same
    else:
        assert local.run(seconds(0.25)) > 0.9

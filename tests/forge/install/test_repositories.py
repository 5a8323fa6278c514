"""What `open_repo` takes, what it refuses, and what it leaves."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.forge.install import fetch_package as fetch
from etude.forge.install.checkout import open_repo
from etude.forge.install.pip_settings import read_index
from etude.sandbox.base import SandboxLimits
from etude.tasks.format.file_tree import Files


def leftovers(folder: Path) -> list[str]:
    work = folder / ".work"
    return [str(path) for name in ("partial", "snapshots") for path in (work / name).glob("*")]


def test_a_folder_is_copied_without_what_tools_left_in_it(tiny: Callable[..., Path], tmp_path: Path) -> None:
    root = tiny("plain", {".venv/pyvenv.cfg": "", "plain/__pycache__/x.pyc": "", "data/a.txt": "a"})
    (root / ".venv" / "python").symlink_to("/usr/bin/python3")  # refused anywhere else
    repo = open_repo(str(root), tmp_path / "repos")
    assert (repo.name, repo.version, repo.origin, repo.history) == ("plain", "", "path", None)
    assert (repo.tree / "data/a.txt").read_text() == "a"
    assert not (repo.tree / ".venv").exists() and not (repo.tree / "plain/__pycache__").exists()
    assert open_repo(str(root), tmp_path / "repos") == repo
    (root / "data/a.txt").write_text("b")
    assert open_repo(str(root), tmp_path / "repos").tree != repo.tree
    assert leftovers(tmp_path / "repos") == []


def test_a_checkout_gives_its_commit_and_a_history_of_ours(
    tiny: Callable[..., Path], commit: Callable[[Path], str], tmp_path: Path
) -> None:
    root = tiny("gitted")
    commit(root)
    (root / "gitted/more.py").write_text("MORE = 1\n")
    head = commit(root)
    (root / "gitted/later.py").write_text("not committed\n")
    marker = tmp_path / "hooked"
    config = root / ".git" / "config"
    config.write_text(config.read_text() + f'[core]\n\tfsmonitor = "touch {marker}"\n\tsshCommand = false\n')
    repo = open_repo(str(root), tmp_path / "repos")
    assert (repo.origin, repo.version) == ("git", head) and repo.history is not None
    assert (repo.tree / "gitted/more.py").exists() and not (repo.tree / "gitted/later.py").exists()
    assert not (repo.tree / ".git").exists() and not marker.exists()
    shutil.rmtree(root / ".git")  # ours borrows nothing
    log = subprocess.run(["git", "-C", str(repo.history), "log", "--format=%s"], capture_output=True, text=True)
    assert log.stdout.split("\n")[:2] == ["a change", "a change"]
    check = subprocess.run(["git", "-C", str(repo.history), "fsck", "--full"], capture_output=True, text=True)
    assert check.returncode == 0, check.stderr


def test_a_package_is_fetched_inside_a_sandbox_and_only_once(
    tiny: Callable[..., Path], pack: Callable[..., Path], tmp_path: Path
) -> None:
    mark = tmp_path / "outside"
    place = f"pathlib.Path({str(mark)!r})"
    trick = f"{place}.parent.mkdir(parents=True, exist_ok=True); {place}.write_text('ran')"
    links = tmp_path / "links"
    links.mkdir()
    pack(tiny("fetchme", trick=trick), links, "fetchme-1.2")
    repo = open_repo("FetchMe", tmp_path / "repos", index=read_index(links))
    assert (repo.name, repo.version, repo.origin) == ("fetchme", "1.2", "package")
    assert "fetchme/__init__.py" in Files.scan(repo.tree)
    assert not mark.exists()  # its build ran, but not here
    shutil.rmtree(links)
    assert open_repo("fetchme", tmp_path / "repos") == repo
    assert open_repo("fetchme==1.2", tmp_path / "repos") == repo
    assert leftovers(tmp_path / "repos") == []

    async def inside_a_loop() -> None:
        with pytest.raises(EtudeError, match="cannot be fetched"):
            open_repo("nosuchthing", tmp_path / "repos", index=read_index(tmp_path))

    asyncio.run(inside_a_loop())


def test_a_package_whose_build_fails_is_fetched_all_the_same(
    tiny: Callable[..., Path], pack: Callable[..., Path], tmp_path: Path
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    pack(tiny("unbuilt", trick="raise RuntimeError('not today')"), links, "unbuilt-0.3")
    repo = open_repo("unbuilt", tmp_path / "repos", index=read_index(links))
    assert repo.version == "0.3" and (repo.tree / "unbuilt/__init__.py").exists()


@pytest.mark.parametrize(
    ("target", "why"), [("/etc/passwd", "lead out"), ("../../outside", "lead out"), ("missing.txt", "missing")]
)
def test_links_that_leave_are_refused(tiny: Callable[..., Path], tmp_path: Path, target: str, why: str) -> None:
    root = tiny("linked")
    (root / "linked/data").symlink_to(target)
    with pytest.raises(EtudeError, match=why):
        open_repo(str(root), tmp_path / "repos")
    assert leftovers(tmp_path / "repos") == [] and list((tmp_path / "repos").iterdir()) == [tmp_path / "repos/.work"]


def test_a_link_out_of_a_checkout_and_of_a_package_is_refused_too(
    tiny: Callable[..., Path], commit: Callable[[Path], str], pack: Callable[..., Path], tmp_path: Path
) -> None:
    root = tiny("linkout")
    (root / "linkout/data").symlink_to("/etc")
    links = tmp_path / "links"
    links.mkdir()
    pack(root, links, "linkout-1.0")
    with pytest.raises(EtudeError, match="linkout"):
        open_repo("linkout", tmp_path / "repos", index=read_index(links))
    commit(root)
    with pytest.raises(EtudeError, match="lead out"):
        open_repo(str(root), tmp_path / "repos")
    assert leftovers(tmp_path / "repos") == []


def test_huge_files_are_refused_and_a_bomb_bursts_in_its_sandbox(
    tiny: Callable[..., Path], pack: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tiny("heavy")
    with (root / "big.bin").open("wb") as file:
        file.truncate(300 << 20)  # a hole, but whoever copies it pays for it
    with pytest.raises(EtudeError, match="bytes"):
        open_repo(str(root), tmp_path / "repos")
    with (root / "big.bin").open("wb") as file:
        file.truncate(24 << 20)
    links = tmp_path / "links"
    links.mkdir()
    pack(root, links, "heavy-1.0")
    monkeypatch.setattr(fetch, "_LIMITS", SandboxLimits(disk=8 << 20))
    with pytest.raises(EtudeError, match=r"(?i)cannot be (fetched|unpacked).*space"):
        open_repo("heavy", tmp_path / "repos", index=read_index(links))
    assert leftovers(tmp_path / "repos") == []


@pytest.mark.parametrize("spec", ["no/such/folder", "-r evil", "a b", "name==", "name==1 --index-url x", "", "@x"])
def test_what_is_no_repository_is_said(spec: str, tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match="folder"):
        open_repo(spec, tmp_path / "repos")


def test_devices_and_pipes_are_refused(tiny: Callable[..., Path], tmp_path: Path) -> None:
    root = tiny("piped")
    os.mkfifo(root / "pipe")
    with pytest.raises(EtudeError, match="neither a file"):
        open_repo(str(root), tmp_path / "repos")

"""An archive of ladder tasks comes from elsewhere: what it names stays in the folders that it is written to."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning.carry_ladder import MANIFEST, Tree, unpack, write_tree
from etude.core.errors import EtudeError

DATA = b"text\n"
DIGEST = hashlib.sha256(DATA).hexdigest()
BLOBS = {DIGEST: DATA}


def archive_of(path: Path, **said: Any) -> Path:
    manifest = {"python": "3.11", "tasks": {}, "environments": {}} | said
    with tarfile.open(path, "w:xz", preset=0) as packed:
        for name, data in ((MANIFEST, json.dumps(manifest).encode()), (DIGEST, DATA)):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            packed.addfile(entry, io.BytesIO(data))
    return path


def test_files_and_links_inside_are_written(tmp_path: Path) -> None:
    write_tree(tmp_path / "a", {"lib64": ["l", "lib"], "lib/x.py": ["f", DIGEST], "bin/y": ["x", DIGEST]}, BLOBS)
    assert (tmp_path / "a/lib64/x.py").read_bytes() == DATA
    assert (tmp_path / "a/bin/y").stat().st_mode & 0o111 and not (tmp_path / "a/lib/x.py").stat().st_mode & 0o111


@pytest.mark.parametrize(
    "tree",
    [
        {"../x": ["f", DIGEST]},
        {"/x": ["f", DIGEST]},
        {"d": ["l", "{outside}"], "d/x": ["f", DIGEST]},
        {"d": ["l", "{outside}"], "d/x": ["l", "y"]},
        {"x": ["l", "{outside}/x"], "./x": ["f", DIGEST]},
        {"x": ["l", "{outside}"]},
        {"a/b/up": ["l", "../.."], "out": ["l", "a/b/up/.."]},
        {"x": ["f", "0" * 64]},
        {"x": ["f", DIGEST], "x/y": ["f", DIGEST]},
    ],
)
def test_trees_that_leave_their_folder_are_refused(tmp_path: Path, tree: Tree) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    filled = {name: [kind, content.format(outside=outside)] for name, (kind, content) in tree.items()}
    with pytest.raises(EtudeError, match="the archive"):
        write_tree(tmp_path / "in/root", filled, BLOBS)
    assert not list(outside.iterdir()) and sorted(path.name for path in tmp_path.iterdir()) == ["in", "outside"]


def test_names_of_tasks_and_environments_are_no_paths_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETUDE_STORE", str(tmp_path / "store"))
    task = {"task.toml": ["f", DIGEST]}
    unpack(archive_of(tmp_path / "good.tar.xz", tasks={"shop/one": task}), tmp_path / "tasks")
    assert (tmp_path / "tasks/shop/one/task.toml").read_bytes() == DATA
    for said in ({"tasks": {"../out": task}}, {"environments": {"../../out": {"facts": {}, "tree": {}}}}):
        with pytest.raises(EtudeError, match="the archive names"):
            unpack(archive_of(tmp_path / "bad.tar.xz", **said), tmp_path / "tasks")
    assert not list(tmp_path.rglob("out*"))

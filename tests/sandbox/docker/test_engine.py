"""What can be said about the docker backend where there is no engine: that there is none, and how streams are read."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from pathlib import Path

import pytest

from etude.cli import doctor
from etude.core.errors import EtudeError
from etude.sandbox.base import SandboxFailure
from etude.sandbox.docker.engine import Engine
from etude.sandbox.docker.files import changed_roots, differences, extract, index
from etude.sandbox.hosts import open_host


def _program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def _stream(path: Path, *entries: tuple[str, bytes, object]) -> Path:
    """A tar stream of (name, type, data or target)."""
    with tarfile.open(path, "w") as out:
        for name, kind, value in entries:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o755 if kind == tarfile.DIRTYPE else 0o644
            data = value if isinstance(value, bytes) else b""
            info.size, info.linkname = len(data), value if isinstance(value, str) else ""
            out.addfile(info, io.BytesIO(data))
    return path


def test_without_an_engine_one_sentence_says_so_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EtudeError) as caught:
        asyncio.run(open_host("docker", tmp_path / "store"))
    said = str(caught.value)
    assert "neither docker nor podman is installed" in said
    assert "install Docker" in said
    assert "local sandbox" in said
    assert "\n" not in said
    (row,) = (row for row in doctor.examine(tmp_path) if row.what == "container engine")
    assert (row.state, row.needed) == ("missing", False)
    assert "neither docker nor podman is installed" in row.found
    assert "install Docker" in row.advice


def test_an_engine_that_does_not_answer_is_passed_over_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    _program(programs, "docker", "echo 'Cannot connect to the daemon' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{programs}")
    with pytest.raises(EtudeError, match=r"docker does not answer \(Cannot connect to the daemon\)"):
        Engine.find()
    _program(programs, "podman", """echo '{"host": {"cgroupVersion": "v2"}, "version": {"Version": "5.0"}}'""")
    assert Engine.find().name == "podman 5.0"
    _program(programs, "docker", """echo '{"ServerVersion": "27.1", "CgroupVersion": "2"}'""")
    found = Engine.find()
    assert (found.name, found.cgroup) == ("docker 27.1", "cgroup2")


def test_a_command_of_an_engine_that_hangs_is_ended_at_its_deadline(tmp_path: Path) -> None:
    _program(tmp_path, "docker", "exec sleep 86399")
    engine = Engine([str(tmp_path / "docker")], "docker", "cgroup2", "1")
    with pytest.raises(SandboxFailure, match=r"docker inspect did not end within 0\.2 s") as caught:
        asyncio.run(engine.call(["inspect"], seconds=0.2))
    assert caught.value.cause == "deadline"


def test_changes_are_told_from_two_streams_and_engines_own_files_are_none(tmp_path: Path) -> None:
    before = _stream(
        tmp_path / "before",
        ("app", tarfile.DIRTYPE, None),
        ("app/same", tarfile.REGTYPE, b"same"),
        ("app/edited", tarfile.REGTYPE, b"old"),
        ("app/gone", tarfile.DIRTYPE, None),
        ("app/gone/file", tarfile.REGTYPE, b"x"),
    )
    after = _stream(
        tmp_path / "after",
        ("app", tarfile.DIRTYPE, None),
        ("app/edited", tarfile.REGTYPE, b"new"),
        ("app/same", tarfile.REGTYPE, b"same"),
        ("app/link", tarfile.SYMTYPE, "/etc/passwd"),
        ("app/twin", tarfile.LNKTYPE, "app/same"),
    )
    rows = differences(index(after, "/app"), index(before, "/app"))
    assert rows == [
        ("/app/edited", "modified", "file", 3, 0o644, ""),
        ("/app/gone", "deleted", "folder", 0, 0o755, ""),
        ("/app/gone/file", "deleted", "file", 1, 0o644, ""),
        ("/app/link", "added", "link", 0, 0o777, "/etc/passwd"),
        ("/app/twin", "added", "file", 4, 0o644, ""),
    ]
    hosts = _stream(tmp_path / "etc", ("etc", tarfile.DIRTYPE, None), ("etc/hosts", tarfile.REGTYPE, b"engine's"))
    empty = _stream(tmp_path / "none", ("etc", tarfile.DIRTYPE, None))
    assert differences(index(hosts, "/etc"), index(empty, "/etc")) == []
    tree = tmp_path / "tree"
    tree.mkdir()
    extract([("/app", after)], rows, tree)
    assert sorted(str(path.relative_to(tree)) for path in tree.rglob("*")) == [
        "app",
        "app/edited",
        "app/link",
        "app/twin",
    ]
    assert (tree / "app/twin").read_bytes() == b"same"
    assert os.readlink(tree / "app/link") == "/etc/passwd"  # noqa: PTH115


@pytest.mark.parametrize("name", ["../up", "other/file", "app/../../up", "/"])
def test_a_stream_that_names_paths_of_another_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="another folder"):
        index(_stream(tmp_path / "stream", (name, tarfile.REGTYPE, b"x")), "/app")


def test_nothing_is_written_through_a_link_that_a_stream_brings(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    stream = _stream(
        tmp_path / "stream",
        ("app", tarfile.DIRTYPE, None),
        ("app/way", tarfile.SYMTYPE, str(outside)),
        ("app/way/file", tarfile.REGTYPE, b"escaped"),
    )
    tree = tmp_path / "tree"
    tree.mkdir()
    rows = differences(index(stream, "/app"), {})
    with pytest.raises(OSError):
        extract([("/app", stream)], rows, tree)
    assert list(outside.iterdir()) == []


def test_where_to_look_for_changes_never_holds_a_folder_of_the_hosts(tmp_path: Path) -> None:
    told = "C /etc\nA /etc/alternatives\nC /data\nA /data/new\nC /dev\nnonsense\nA /usr/x\n"
    told += "C /workspace\nA /workspace/a/b\n"
    shows = ("/usr", "/etc/alternatives", "/data/env")
    assert changed_roots(told, shows) == ["/data/new", "/workspace"]

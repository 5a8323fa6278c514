"""The store: equal content is one layer, hostile trees are refused and leave nothing, old layers are forgotten."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.sandbox.base import SandboxFailure
from etude.sandbox.store.importing import Bounds
from etude.sandbox.store.layers import Store, interpreter_folders, system_folders


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_bytes(b"A = 1\n")
    (root / "README").write_bytes(b"read me\n")
    for path in (root / "src", root / "src" / "a.py", root / "README"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return root


def test_a_layer_is_named_by_paths_modes_and_content_alone(store: Store, tree: Path) -> None:
    first = store.add(tree, shows=())
    os.utime(tree / "README", (1, 1))
    assert store.add(tree, shows=()) == first
    assert store.add_files({"src/a.py": b"A = 1\n", "README": b"read me\n"}, shows=()) == first
    digests = {first.digest, store.add(tree, at="/opt/x", shows=()).digest, store.add(tree, shows=("/usr",)).digest}
    (tree / "README").chmod(0o755)
    digests.add(store.add(tree, shows=()).digest)
    (tree / "README").chmod(0o644)
    (tree / "README").write_bytes(b"read mE\n")
    digests.add(store.add(tree, shows=()).digest)
    (tree / "empty").mkdir()
    digests.add(store.add(tree, shows=()).digest)
    assert len(digests) == 6


def test_a_layer_holds_the_tree_at_its_place(store: Store, tree: Path) -> None:
    (tree / "link").symlink_to("src/a.py")
    (tree / "run.sh").write_bytes(b"#!/bin/sh\n")
    (tree / "run.sh").chmod(0o755)
    layer = store.add(tree, at="/opt/deep/er")
    root = layer.path / "opt" / "deep" / "er"
    assert (root / "src" / "a.py").read_bytes() == b"A = 1\n"
    assert (root / "link").readlink() == Path("src/a.py")
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (root / "README").stat().st_mtime == (tree / "README").stat().st_mtime
    assert layer.shows == (*system_folders(), *interpreter_folders())
    assert store.layer(layer.digest) == layer


def _link(name: str, target: str) -> Callable[[Path], object]:
    return lambda root: (root / name).symlink_to(target)


def _sparse(root: Path) -> None:
    with (root / "sparse").open("wb") as file:
        file.truncate(1 << 30)


def _deep(root: Path) -> None:
    (root / "/".join(["d"] * 400)).mkdir(parents=True)


def _socket(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))


def _cross(root: Path) -> None:
    (root / "one").mkdir()
    (root / "two").mkdir()
    (root / "one" / "to_two").symlink_to("../two")
    (root / "two" / "to_one").symlink_to("../one")


def _hard_link_out(root: Path) -> None:
    (root.parent / "outside").write_text("not yours")
    os.link(root.parent / "outside", root / "inside")


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link to itself": (_link("loop", "loop"), "loop.*leads only to links"),
    "two links to each other": (lambda root: [_link("x", "y")(root), _link("y", "x")(root)], "leads only to links"),
    "a link to its own folder": (_link("src/self", "."), "src/self.*leads back to a folder above it"),
    "a link to a folder above": (_link("src/up", ".."), "leads back"),
    "an absolute link to its workspace": (_link("src/all", "/workspace"), "leads back"),
    "folders linked crosswise": (_cross, "leads back"),
    "a sparse file of 1 GB": (_sparse, r"sparse.*1073741824 bytes \(with holes\)"),
    "a control character in a name": (lambda root: (root / "a\x1b[2Jb").touch(), "control characters"),
    "a line break in a name": (lambda root: (root / "a\nb").touch(), "control characters"),
    "a control character in a link": (_link("fine", "a\x07b"), "control characters"),
    "reordered text in a name": (lambda root: (root / "a\u202eyp.exe").touch(), "control characters"),
    "a setuid file": (lambda root: (root / "README").chmod(0o4755), "README.*setuid"),
    "a setgid file": (lambda root: (root / "README").chmod(0o2755), "setuid or setgid"),
    "a pipe": (lambda root: os.mkfifo(root / "pipe"), "a device, pipe or socket"),
    "a socket": (_socket, "a device, pipe or socket"),
    "a device": (lambda root: os.mknod(root / "gone", 0o20600, 0), "a device, pipe or socket"),
    "a hard link out": (_hard_link_out, "inside.*hard link to a file outside"),
    "folders 400 deep": (_deep, "nested more than 100 deep"),
}


@pytest.mark.parametrize("trap", HOSTILE)
def test_a_hostile_tree_is_refused_and_leaves_nothing(store: Store, tree: Path, trap: str) -> None:
    make, words = HOSTILE[trap]
    make(tree)
    with pytest.raises(EtudeError, match=words) as caught:
        store.add(tree)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [list((store.root / name).iterdir()) for name in ("layers", "partial", "snapshots")] == [[], [], []]


def test_size_and_count_are_bounded(store: Store, tree: Path) -> None:
    for bounds, words in (
        (Bounds(bytes=10), "larger than 10 bytes together"),
        (Bounds(file_bytes=7), "README.*8 bytes, more than 7"),
        (Bounds(entries=2), "more than 2 entries"),
    ):
        with pytest.raises(EtudeError, match=words):
            store.add(tree, bounds=bounds)
    assert list((store.root / "layers").iterdir()) == []


def test_harmless_oddities_are_taken(store: Store, tree: Path) -> None:
    os.link(tree / "README", tree / "twin")
    (tree / "broken").symlink_to("nowhere")
    (tree / "out").symlink_to("/etc/passwd")
    (tree / "far").symlink_to("../../../etc")
    (tree / "sideways").symlink_to("src")
    (tree / os.fsdecode(b"latin-\xe9")).write_bytes(b"")
    (tree / "shared").mkdir()
    (tree / "shared").chmod(0o2775)
    layer = store.add(tree)
    assert (layer.path / "workspace" / "twin").read_bytes() == b"read me\n"
    assert (layer.path / "workspace" / "out").readlink() == Path("/etc/passwd")
    loops, outside = tree / "again", tree.parent / "elsewhere"
    loops.symlink_to(".")
    outside.write_text("mine")
    os.link(outside, tree / "mine")
    assert store.add(tree, bounds=Bounds(hard_links_out=True, link_loops=True)).digest != layer.digest


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "", "a\x00b", "line\nbreak"])
def test_files_given_by_path_cannot_leave_their_place(store: Store, path: str) -> None:
    with pytest.raises(EtudeError):
        store.add_files({path: b""})
    with pytest.raises(EtudeError):
        store.add_files({"a": b""}, at="relative")
    with pytest.raises(EtudeError):
        store.add_files({"a": b""}, shows=("/usr/../etc",))


def test_a_missing_tree_is_said_in_one_sentence(store: Store, tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match="cannot be made a layer"):
        store.add(tmp_path / "nowhere")
    with pytest.raises(EtudeError, match="has no layer"):
        store.layer("0" * 64)
    with pytest.raises(EtudeError, match="has no snapshot"):
        store.snapshot("0" * 64)


def test_a_layer_from_before_a_reboot_is_checked_once(store: Store, tree: Path) -> None:
    layer = store.add(tree, shows=())
    facts = layer.path.parent / "layer.json"

    def reboot() -> None:
        facts.write_text(json.dumps(json.loads(facts.read_text()) | {"boot": "an earlier one"}))

    reboot()
    assert store.layer(layer.digest) == layer
    assert json.loads(facts.read_text())["boot"] != "an earlier one"
    reboot()
    (layer.path / "workspace" / "README").write_bytes(b"")  # as a power cut leaves it
    with pytest.raises(EtudeError, match="has no layer"):
        store.layer(layer.digest)
    again = store.add(tree, shows=())
    assert again == layer
    assert (again.path / "workspace" / "README").read_bytes() == b"read me\n"


def test_pruning_takes_the_longest_unused_and_spares_what_is_in_use(store: Store) -> None:
    layers = [store.add_files({"file": bytes([n]) * 1000}) for n in range(4)]
    for age, layer in enumerate(layers):
        os.utime(layer.path.parent / "layer.json", (1000 + age, 1000 + age))
    held = store.hold(layers[0])
    os.utime(layers[0].path.parent / "layer.json", (1, 1))
    assert store.prune(4000) == []
    assert store.prune(2500) == [layers[1].digest, layers[2].digest]
    os.close(held)
    assert store.prune(0) == [layers[0].digest, layers[3].digest]
    assert list((store.root / "layers").iterdir()) == list((store.root / "partial").iterdir()) == []


def test_a_store_of_another_user_is_refused(store: Store) -> None:
    (store.root / "store.json").write_text(json.dumps({"owner": 4321}))
    with pytest.raises(EtudeError, match="for user 4321"):
        Store(store.root)


def test_a_layer_that_is_pruned_while_a_start_waits_for_it_is_gone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, lock = store.add_files({"x": b"1"}, shows=()), fcntl.flock

    def pruned_first(handle: int, kind: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        assert store.prune(0) == [layer.digest]
        lock(handle, kind)

    monkeypatch.setattr(fcntl, "flock", pruned_first)
    files = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(SandboxFailure, match="is not in the store any more") as caught:
        store.hold(layer)
    assert caught.value.cause == "store" and len(list(Path("/proc/self/fd").iterdir())) == files

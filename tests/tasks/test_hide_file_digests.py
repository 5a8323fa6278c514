"""The cover over what an installer wrote down is made of the layer's own files, whatever hostile code left there."""

from __future__ import annotations

from pathlib import Path

from etude.sandbox.store.layers import Store
from etude.tasks.environment.hide_file_digests import without_digests

LOCAL = '{"dir_info": {}}'


def covered(store: Store, tree: Path) -> dict[str, str]:
    made = without_digests(store.add(tree, at="/opt/env", shows=()), store)
    return {file.parent.name: file.read_text() for each in made for file in each.path.rglob("RECORD")}


def test_links_to_files_of_this_machine_and_pipes_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret/x.dist-info"
    secret.mkdir(parents=True)
    (secret / "RECORD").write_text("a key of this machine,sha256=abc,1\n")
    (secret / "direct_url.json").write_text(LOCAL)
    packages = tmp_path / "tree/lib/python3.12/site-packages"
    for name in ("link", "long", "honest"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
        (packages / f"{name}.dist-info/direct_url.json").write_text(LOCAL)
    (packages / "link.dist-info/RECORD").symlink_to(secret / "RECORD")
    (packages / "folder.dist-info").symlink_to(secret)
    (packages / "long.dist-info/RECORD").write_text(f"{'x' * 200_000},sha256=abc,1\n")
    (packages / "honest.dist-info/RECORD").write_text("shop.py,sha256=abc,1\n")
    found = covered(Store(tmp_path / "store"), tmp_path / "tree")
    assert found == {"long.dist-info": "\n", "honest.dist-info": "shop.py,,\n"}

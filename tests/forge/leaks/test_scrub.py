"""The scrub: what would give an answer away goes, with a reason; code that may be needed is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.forge.leaks.audit import audit_tree
from etude.forge.leaks.scrub import scrub
from redteam.leaks.hiding_places import HIDING_PLACES


def lay_out(tree: Path, files: dict[str, bytes]) -> Path:
    for path, data in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(data)
    return tree


@pytest.mark.parametrize("name", list(HIDING_PLACES))
def test_every_hiding_place_of_a_workspace_is_cleaned_or_refused(name: str, shop: Any, tmp_path: Path) -> None:
    planted = {path: data for path, data in HIDING_PLACES[name](shop["path"], shop["module"]).items() if path[0] != "/"}
    tree = lay_out(tmp_path / "tree", {**shop["files"], **planted})
    done = scrub(tree, [shop["deleted"]])
    if done.clean:
        assert audit_tree(tree, [shop["deleted"]]) == []
        assert bool(done.removed) == bool(planted)
    assert all(why for _, why in done.removed + done.refused)
    for path, data in shop["files"].items():
        assert (tree / path).read_bytes() == data


def test_a_vendored_duplicate_is_refused_and_stays(shop: Any, tmp_path: Path) -> None:
    planted = HIDING_PLACES["vendored-and-reformatted"](shop["path"], shop["module"])
    tree = lay_out(tmp_path / "tree", {**shop["files"], **planted})
    done = scrub(tree, [shop["deleted"]])
    assert [path for path, _ in done.refused] == list(planted)
    assert "100% of the deleted" in done.refused[0][1]
    assert all((tree / path).exists() for path in planted)


def test_documentation_that_shows_the_code_goes(shop: Any, tmp_path: Path) -> None:
    planted = HIDING_PLACES["docs-with-prompts"](shop["path"], shop["module"])
    tree = lay_out(tmp_path / "tree", {**shop["files"], **planted, "docs/index.rst": b"Welcome\n"})
    done = scrub(tree, [shop["deleted"]])
    assert [path for path, _ in done.removed] == ["docs/internals.rst"]
    assert (tree / "docs/index.rst").exists()


def test_what_must_be_kept_is_refused_instead(shop: Any, tmp_path: Path) -> None:
    planted = HIDING_PLACES["notebook"](shop["path"], shop["module"])
    tree = lay_out(tmp_path / "tree", {**shop["files"], **planted})
    done = scrub(tree, [shop["deleted"]], keep=["examples/**"])
    assert not done.clean
    assert (tree / "examples/tour.ipynb").exists()


def test_ordinary_folders_stay(shop: Any, tmp_path: Path) -> None:
    ordinary = {
        "src/shop/build/__init__.py": b"",
        "src/shop/dist/table.py": b"ROWS = []\n",
        "build/make.py": b"print('not an output')\n",
        "docs/conf.py": b"project = 'shop'\n",
        "shop.egg-info/PKG-INFO": b"Metadata-Version: 2.1\nName: shop\n",
        "tests/data/sample.zip": b"PK\x05\x06" + bytes(18),
        "site/notes.txt": b"about the building site\n",
        ".github/workflows/test.yml": b"on: push\n",
    }
    tree = lay_out(tmp_path / "tree", {**shop["files"], **ordinary})
    done = scrub(tree, [shop["deleted"]])
    assert done.removed == [] and done.refused == []


def test_history_goes_under_any_name(shop: Any, tmp_path: Path) -> None:
    bare = {"fixtures/repo.git/HEAD": b"ref: refs/heads/main\n", "fixtures/repo.git/objects/info/packs": b"\n"}
    tree = lay_out(tmp_path / "tree", {**shop["files"], **bare, "vendor/.git": b"gitdir: ../../.git/modules/vendor\n"})
    done = scrub(tree, [shop["deleted"]])
    assert sorted(done.removed) == [("fixtures/repo.git", "history"), ("vendor/.git", "history")]


def test_links_are_not_followed(shop: Any, tmp_path: Path) -> None:
    outside = lay_out(tmp_path / "outside", {"keep.pyc": b"x", "__pycache__/y.pyc": b"y"})
    tree = lay_out(tmp_path / "tree", shop["files"])
    (tree / "away").symlink_to(outside)
    (tree / "__pycache__").symlink_to(outside / "__pycache__")
    scrub(tree, [shop["deleted"]])
    assert (outside / "keep.pyc").exists() and (outside / "__pycache__/y.pyc").exists()


def test_a_tree_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match="no workspace"):
        scrub(tmp_path / "nowhere", [])

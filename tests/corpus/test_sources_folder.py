import os

import pytest

from etude.core.errors import EtudeError
from etude.corpus.document import Document, Rejected
from etude.corpus.sources.table import open_sources


def read(**spec):
    found = list(open_sources([spec])[0].documents())
    documents = {f.path: f for f in found if isinstance(f, Document)}
    return documents, {f.path: f.reason for f in found if isinstance(f, Rejected)}


def test_a_folder_gives_its_code_in_sorted_order_and_nothing_else(tree):
    root = tree(
        {
            "b.py": "b = 1\n",
            "a/x.py": "x = 1\r\ny = 2\r",
            "a/notes.txt": "no code",
            "a/__pycache__/x.py": "cache",
            "a/.hidden/x.py": "hidden",
            "node_modules/m.js": "vendored",
            "vendor/v.py": "excluded",
            "bom.py": b"\xef\xbb\xbfz = 3\n",
        }
    )
    documents, rejected = read(use="folder", path=str(root), name="mine", exclude=["vendor/*"])
    assert list(documents) == ["b.py", "bom.py", "a/x.py"]
    assert documents["a/x.py"].text == "x = 1\ny = 2\n"
    assert documents["bom.py"].text == "z = 3\n"
    assert {d.repo for d in documents.values()} == {"mine"} and not rejected


def test_what_cannot_be_text_is_rejected_with_a_reason(tree):
    root = tree({"nul.py": b"a\0b", "latin.py": b"caf\xe9 = 1", "huge.py": b"x" * 101, "good.py": "ok = 1"})
    documents, rejected = read(use="folder", path=str(root), max_file_bytes=100)
    assert list(documents) == ["good.py"]
    assert rejected == {"nul.py": "binary", "latin.py": "not UTF-8", "huge.py": "too big"}


def test_links_and_pipes_are_never_followed(tree, tmp_path):
    secret = tmp_path / "secret.py"
    secret.write_text("password = 1")
    root = tree({"inside.py": "x = 1", "sub/y.py": "y = 1"})
    (root / "link.py").symlink_to(secret)
    (root / "inner.py").symlink_to(root / "inside.py")
    (root / "folder").symlink_to(tmp_path, target_is_directory=True)
    (root / "loop").symlink_to(root, target_is_directory=True)
    os.mkfifo(root / "pipe.py")
    documents, rejected = read(use="folder", path=str(root))
    assert sorted(documents) == ["inside.py", "sub/y.py"]
    assert set(rejected) == {"link.py", "inner.py", "pipe.py"}
    assert set(rejected.values()) == {"link or unreadable"}


def test_names_that_could_confuse_are_refused(tree):
    root = tree({"a\nb.py": "x = 1", "back\\slash.py": "x = 1", "fine.py": "x = 1"})
    (root / os.fsdecode(b"raw\xff.py")).write_text("x = 1")
    documents, rejected = read(use="folder", path=str(root))
    assert list(documents) == ["fine.py"]
    assert set(rejected.values()) == {"unsafe name"} and len(rejected) == 3


def test_children_of_a_folder_can_be_repositories(tree):
    root = tree({"one/a.py": "a = 1", "two/b/c.py": "c = 1", "top.py": "t = 1"})
    documents, _ = read(use="folder", path=str(root), name="all", repositories="children")
    assert {path: d.repo for path, d in documents.items()} == {
        "one/a.py": "all/one",
        "two/b/c.py": "all/two",
        "top.py": "all/top",
    }


def test_the_standard_library_is_a_source_and_tests_are_a_setting():
    without, _ = read(use="stdlib")
    assert {"json/decoder.py", "abc.py", "unittest/mock.py"} <= without.keys()
    assert not any("test" in path.split("/")[:-1] or "site-packages" in path for path in without)
    assert without["json/decoder.py"].repo == "stdlib/json"
    assert {d.license for d in without.values()} == {"permissive"}
    source = open_sources([{"use": "stdlib", "tests": True}])[0]
    assert any(found.path.startswith("test/") for found in source.documents())


def test_a_source_of_the_users_own_comes_from_a_file(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from etude.corpus.document import Document, SourceSettings\n"
        "class Mine:\n"
        "    class Settings(SourceSettings):\n"
        "        count: int = 2\n"
        "    def __init__(self, settings):\n"
        "        self.settings = settings\n"
        "        self.name = settings.name or 'mine'\n"
        "    def documents(self):\n"
        "        for n in range(self.settings.count):\n"
        "            yield Document('repo', f'{n}.py', f'x = {n}', 'unknown', self.name)\n"
    )
    documents, _ = read(use=f"{mine}:Mine", count=3, weight=2)
    assert list(documents) == ["0.py", "1.py", "2.py"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"use": "folder", "path": "/nowhere/at/all"}, "does not exist"),
        ({"use": "git", "path": "/nowhere/at/all"}, "does not exist"),
        ({"use": "archive", "path": "/nowhere/at/all.zip"}, "does not exist"),
        ({"use": "folder"}, "path"),
        ({"use": "foldr", "path": "."}, "folder"),
        ({"use": "folder", "path": ".", "sufixes": []}, "suffixes"),
        ({"use": "folder", "path": ".", "weight": 0}, "weight"),
        ({"path": "."}, "use"),
    ],
)
def test_mistakes_are_one_sentence(spec, words):
    with pytest.raises(EtudeError, match=words) as caught:
        list(open_sources([spec])[0].documents())
    assert "\n" not in str(caught.value)


def test_two_sources_of_one_name_are_refused(tree):
    root = str(tree({"a.py": "a = 1"}))
    with pytest.raises(EtudeError, match="two corpus sources are called"):
        open_sources([{"use": "folder", "path": root}, {"use": "folder", "path": root}])
    with pytest.raises(EtudeError, match="empty"):
        open_sources([])

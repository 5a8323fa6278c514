"""The files of a repository in reading order, and sequences that hold whole repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.core.settings import CorpusSettings, TokensSettings
from etude.corpus.build import build_corpus
from etude.corpus.mix import Mix
from etude.corpus.ordering import imports, order
from etude.corpus.sources.folder import Folder
from etude.tokens.tokenizer import Tokenizer


def test_a_file_stands_behind_those_that_it_imports() -> None:
    texts = {
        "README.md": "import nothing",
        "app/__init__.py": "",
        "app/cli.py": "import sys\nfrom app import core, store\n",
        "app/core.py": "from . import shapes\nfrom .store import Store as S\n",
        "app/shapes.py": "import math\n",
        "app/store.py": "from app.shapes import (\n    Shape,\n)\n",
    }
    assert order(texts) == [
        "README.md",
        "app/__init__.py",
        "app/shapes.py",
        "app/store.py",
        "app/core.py",
        "app/cli.py",
    ]


def test_circles_and_unknown_modules_keep_the_order_of_paths() -> None:
    texts = {"a.py": "import b\nimport numpy as np\n", "b.py": "import a\n", "c.py": "import os, b\n"}
    assert order(texts) == ["b.py", "a.py", "c.py"]
    assert sorted(order(texts)) == sorted(texts)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import pkg.one", ["pkg/one.py"]),
        ("    from pkg import one, sub  # both", ["pkg/__init__.py", "pkg/one.py", "pkg/sub/__init__.py"]),
        ("from .sub import deep", ["pkg/sub/__init__.py", "pkg/sub/deep.py"]),
        ("from .. import outside", []),
        ("import one", ["pkg/one.py"]),  # beside the importing file
        ("fromage = 1\nimportant = 2", []),
    ],
)
def test_imports_are_read_without_running_anything(line: str, found: list[str]) -> None:
    paths = ["pkg/__init__.py", "pkg/one.py", "pkg/sub/__init__.py", "pkg/sub/deep.py", "pkg/here.py"]
    modules = {tuple(p.removesuffix(".py").removesuffix("/__init__").split("/")): p for p in paths}
    assert imports("pkg/here.py", line, modules) == found


def lines(name: str, count: int) -> str:
    return "".join(
        f"def {name}{place}(x):\n    return x + {place * 37 % 101} * len(str(x))\n\n" for place in range(count)
    )


def build(tmp_path: Path, order: str) -> Path:
    code = tmp_path / "code"
    for number, repo in enumerate(("alpha", "beta", "gamma")):
        (code / repo).mkdir(parents=True, exist_ok=True)
        (code / repo / "a.py").write_text(f"from z import value{number}\n" + lines(f"first{number}_", 30))
        (code / repo / "z.py").write_text(f"value{number} = 0\n" + lines(f"second{number}_", 20))
    source = Folder(Folder.Settings(path=str(code), repositories="children"))
    settings = CorpusSettings(near_threshold=1.0, held_out=0.0, fim_rate=0.0, order=order)  # type: ignore[arg-type]
    build_corpus([source], settings, TokensSettings(vocab_size=300), tmp_path / order, 0)
    return tmp_path / order


@pytest.mark.parametrize("order", ["paths", "imports"])
def test_a_sequence_holds_a_repository_in_its_order(tmp_path: Path, order: str) -> None:
    corpus = build(tmp_path, order)
    tokenizer = Tokenizer.load(corpus / "tokenizer")
    mix = Mix(corpus, "train", 100_000, 0, unit="repository")
    total = sum(shard.tokens for shard in mix.manifest.shards)
    texts = [tokenizer.decode(ids.tolist()) for ids in mix.take(total)]
    assert len(texts) == 3
    for text in texts:
        number = text.split("value")[1][0]
        names = [f"from z import value{number}", f"value{number} = 0\n"]
        first, second = names if order == "paths" else names[::-1]
        assert text.startswith(first) and second in text
        assert not any(f"value{other}" in text for other in "012" if other != number)


def test_repositories_are_cut_evenly_and_a_position_continues_them(tmp_path: Path) -> None:
    corpus = build(tmp_path, "paths")
    mix = Mix(corpus, "train", 64, 3, unit="repository")
    taken = mix.take(500)
    assert max(map(len, taken)) <= 64
    middle = mix.position()
    after = [ids.tolist() for ids in mix.take(200)]
    again = Mix(corpus, "train", 64, 3, unit="repository")
    again.seek(middle)
    assert [ids.tolist() for ids in again.take(200)] == after

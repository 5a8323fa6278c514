"""Code found by questions: words, BM25 against a plain formula, vectors, an index that follows the files."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, ToolResult, User
from etude.harness.code_search import workspace
from etude.harness.code_search.chunks import chunks_of
from etude.harness.code_search.embedding import WordVectors
from etude.harness.code_search.index import CodeIndex
from etude.harness.code_search.lexical import K1, B, LexicalIndex
from etude.harness.code_search.pairs import Pair, docstring_pairs, trace_pairs, without_docstrings
from etude.harness.code_search.words import split_words
from etude.harness.code_search.workspace import WorkspaceIndex
from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.table import build_tools
from etude.harness.trajectory import MessageRecord, Trajectory
from etude.learn.word_vectors import train_word_vectors

CART = (
    "class Cart:\n    def add_item(self, price):\n        self.items.append(price)\n\n    def total(self):\n        0\n"
)
MAIL = "def send_receipt(address):\n    connect(address).deliver(RECEIPT)\n"


def test_identifiers_and_sentences_have_the_same_words() -> None:
    assert split_words("parseHTTPResponses(max_retries=3)") == ["pars", "http", "respons", "max", "retry", "3"]
    assert split_words("Parsing of the HTTP response") == ["pars", "http", "respons"]
    assert split_words("running runs") == ["run", "run"]


def test_scores_are_those_of_the_plain_formula() -> None:
    files = {"a": ["x y y", "z"], "b": ["x x x z"], "c": ["w", "w w", "q"]}
    index = LexicalIndex()
    for name in ("c", "a", "b", "gone"):
        index.put(name, [Counter(piece.split()) for piece in files.get(name, ["x"])])
    index.put("b", [Counter(["old"])])
    index.put("b", [Counter(piece.split()) for piece in files["b"]])
    index.drop("gone")

    def bm25(word: str, documents: list[list[str]]) -> list[float]:
        held = sum(word in document for document in documents)
        usual = sum(map(len, documents)) / len(documents)
        weight = math.log(1 + (len(documents) - held + 0.5) / (held + 0.5))
        counts = [(document.count(word), len(document) / usual) for document in documents]
        return [weight * count * (K1 + 1) / (count + K1 * (1 - B + B * long)) for count, long in counts]

    whole = [" ".join(pieces).split() for pieces in files.values()]
    pieces = [(name, piece.split()) for name in files for piece in files[name]]
    wanted = np.sum([bm25(word, whole) for word in ("x", "z", "z")], axis=0)
    each = np.sum([bm25(word, [piece for _, piece in pieces]) for word in ("x", "z", "z")], axis=0)
    best = [max(score for score, (name, _) in zip(each, pieces, strict=True) if name == wish) for wish in files]
    score_F, best_F = index.scores(["x", "z", "z", "never"])
    assert index.files == ["a", "b", "c"]
    np.testing.assert_allclose(score_F, wanted, rtol=1e-5)
    np.testing.assert_allclose(best_F, best, rtol=1e-5)


def test_a_file_is_cut_at_its_definitions() -> None:
    found = chunks_of("shop/cart.py", CART)
    assert [(chunk.line, chunk.name) for chunk in found] == [(1, ""), (1, "Cart"), (2, "add_item"), (5, "total")]
    assert found[0].words["cart"] == 2 and found[2].words["item"] > 2
    assert len(chunks_of("data.py", "def f(): pass\n" * 5000)) < 500


def test_a_question_finds_the_function_and_a_changed_file_is_found_anew() -> None:
    index = CodeIndex()
    assert index.search("anything") == []
    index.put("shop/cart.py", CART)
    index.put("shop/mail.py", MAIL)
    assert index.search("Send a receipt to an address.")[0] == ("shop/mail.py", 1, "send_receipt")
    assert index.search("how are items added?")[0] == ("shop/cart.py", 2, "add_item")
    index.put("shop/cart.py", "x = 1\n")
    assert [found.path for found in index.search("how are items added?")] == []
    index.drop("shop/mail.py")
    assert index.search("send a receipt") == [] and len(index) == 1


def test_trained_vectors_know_words_that_mean_the_same(tmp_path: Path) -> None:
    pairs = [
        (Counter(split_words(f"{verb} the {thing}")), Counter(split_words(f"{code}_{thing}(x)")))
        for verb, code in (("Erase", "remove"), ("Fetch", "load"), ("Build", "make"), ("Compare", "diff"))
        for thing in ("user", "page", "tree", "file", "name", "date", "line", "word")
    ]
    words, vectors = train_word_vectors(pairs, width=16, steps=60, batch=16, least=1, lr=0.05)
    WordVectors(tuple(words), vectors.numpy()).save(tmp_path / "vectors")
    loaded = WordVectors.load(tmp_path / "vectors")
    index = CodeIndex(loaded)
    for code in ("remove", "load", "make", "diff"):
        index.put(f"{code}.py", f"def {code}_it(x):\n    pass\n")
    assert CodeIndex(None).search("erase") == []
    assert [index.search(verb)[0].path for verb in ("erase", "fetch", "build", "compare")] == [
        "remove.py",
        "load.py",
        "make.py",
        "diff.py",
    ]
    np.testing.assert_allclose(np.linalg.norm(loaded.embed({"eras": 2})), 1, rtol=1e-5)
    assert not loaded.embed({"never": 1}).any()


def test_a_file_that_holds_no_vectors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"nothing of the kind")
    for name, told in (("x", "holds no word vectors"), ("y", "cannot be read")):
        with pytest.raises(EtudeError, match=told):
            build_tools([{"use": "search", "vectors": str(tmp_path / name)}])


def test_the_index_follows_what_happens_in_the_workspace(sandbox: Any) -> None:
    (sandbox.root / "shop").mkdir()
    (sandbox.root / "shop" / "cart.py").write_text(CART)
    (sandbox.root / "shop" / "picture.py").write_bytes(b"\0\1")
    (sandbox.root / "__pycache__").mkdir()
    (sandbox.root / "__pycache__" / "mail.py").write_text(MAIL)
    context, index = ToolContext(sandbox, str(sandbox.root)), WorkspaceIndex.empty(None)
    [tool] = build_tools([{"use": "search", "max_files": 1}]).values()

    async def play() -> list[str]:
        seen = [str(await index.refresh(context)), str(await index.refresh(context))]
        seen.append((await tool.call({"question": "add an item"}, context)).text)
        (sandbox.root / "shop" / "mail.py").write_text(MAIL)
        (sandbox.root / "shop" / "cart.py").unlink()
        seen.append((await tool.call({"question": "deliver the receipt"}, context)).text)
        seen.append((await tool.call({"question": "add an item"}, context)).text)
        with pytest.raises(ToolError, match="question is empty"):
            await tool.call({"question": " "}, context)
        return [*seen, str(await index.refresh(context))]

    assert asyncio.run(play()) == [
        "2",
        "0",
        "shop/cart.py:2 add_item",
        "shop/mail.py:1 send_receipt",
        "[nothing]",
        "2",
    ]


def test_hostile_files_fill_no_memory(sandbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MOST_BYTES", 1000)
    monkeypatch.setattr(workspace, "STALE_WORDS", 20)
    context, index = ToolContext(sandbox, str(sandbox.root)), WorkspaceIndex.empty(None)
    [tool] = build_tools([{"use": "search"}]).values()
    for number in range(5):
        (sandbox.root / f"small{number}.py").write_text("x = 1\n" * 30)
    (sandbox.root / "data.py").write_text("y = 1\n" * 60)
    read, words = sandbox.read, set[int]()

    async def grown(path: str, **options: Any) -> bytes:
        if path.endswith("grows.py"):
            Path(path).write_text("z = 1\n" * 1000)
        return await read(path, **options)

    async def play() -> None:
        await index.refresh(context)
        assert sorted(index.stamps) == [f"small{number}.py" for number in range(5)]  # the largest is left out
        (sandbox.root / "grows.py").write_text("z = 1\n")
        sandbox.read = grown  # while a background process writes
        await index.refresh(context)
        assert len(index.index) == 5 and "grows.py" in index.stamps
        sandbox.read = read
        (sandbox.root / "grows.py").unlink()
        for turn in range(30):
            text = " ".join(f"{chr(97 + n)}{chr(97 + turn % 26)}{chr(97 + turn // 26)}q" for n in range(10))
            (sandbox.root / "new.py").write_text(text)
            await index.refresh(context)
            words.add(index.index.stale_words)
        assert max(words) <= 30 and index.index.search("aaaq bbaq", 1) == []
        (sandbox.root / "new.py").write_text(f"def {'long' * 100}(): ...\n")
        assert len((await tool.call({"question": "def"}, context)).text) < 400

    asyncio.run(play())


def test_docstrings_are_taken_out_of_what_is_searched() -> None:
    said = '    """Add two whole numbers to each other.\n\n    More."""\n'
    text = f'"""Module."""\n\n\ndef add(a, b):\n{said}    return a + b\n'
    assert without_docstrings(text) == "\n\n\ndef add(a, b):\n    \n\n\n    return a + b\n"
    [pair] = docstring_pairs("calc.py", text)
    assert pair.question == "Add two whole numbers to each other." and "whole" not in pair.code
    assert "return a + b" in pair.code
    assert without_docstrings("def (") == "def (" and list(docstring_pairs("x", "def (")) == []


def test_traces_pair_questions_with_the_files_that_were_edited() -> None:
    entries = [
        User("Mend add."),
        Assistant(calls=(Call("search", {"question": "adding numbers"}),)),
        ToolResult("search", "calc.py"),
        Assistant(calls=(Call("read", {"path": "calc.py"}), Call("read", {"path": "other.py"}))),
        ToolResult("read", "def add(): ..."),
        ToolResult("read", "x"),
        Assistant(calls=(Call("edit", {"path": "calc.py"}),)),
        ToolResult("edit", "ok"),
    ]
    trajectory = Trajectory(entries=[MessageRecord(message) for message in entries])
    assert list(trace_pairs([trajectory])) == [
        Pair("Mend add.", "def add(): ...", "calc.py"),
        Pair("adding numbers", "def add(): ...", "calc.py"),
    ]


def test_documentation_is_searched_by_sections(tmp_path: Path, sandbox: Any) -> None:
    (tmp_path / "guide.md").write_text("# Install\nRun the installer.\n\n# Upgrade\nStop the server first.\n")
    (tmp_path / "old.rst").write_text("Colours\n=======\nRed and green.\n")
    (tmp_path / "image.png").write_bytes(b"server server")
    [tool] = build_tools([{"use": "docs", "folder": str(tmp_path), "max_sections": 1}]).values()
    context = ToolContext(sandbox, str(sandbox.root))

    async def play() -> list[str]:
        return [(await tool.call({"question": q}, context)).text for q in ("stopping servers", "colour red", "zebra")]

    assert asyncio.run(play()) == [
        "guide.md, section 2\n# Upgrade\nStop the server first.",
        "old.rst, section 1\nColours\n=======\nRed and green.",
        "[nothing]",
    ]
    with pytest.raises(ToolError, match="no documentation"):
        asyncio.run(build_tools([{"use": "docs"}])["docs"].call({"question": "x"}, context))
    with pytest.raises(EtudeError, match="does not exist"):
        build_tools([{"use": "docs", "folder": str(tmp_path / "gone")}])

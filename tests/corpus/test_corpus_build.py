import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys

import pytest

from etude.core.errors import EtudeError
from etude.core.settings import CorpusSettings, TokensSettings
from etude.corpus import build, encode
from etude.corpus.build import build_corpus
from etude.corpus.manifest import load_manifest
from etude.corpus.mix import Mix
from etude.corpus.shards import OpenShard
from etude.corpus.sources.table import open_sources
from etude.tokens.tokenizer import Tokenizer

TOKENS = TokensSettings(vocab_size=400, train_bytes=30_000)
SETTINGS = CorpusSettings(held_out=0.15, shard_tokens=4000)


@pytest.fixture
def planted(tree, code):
    """Forty good files in twelve repositories, and one or more of each kind of fault."""
    files = {f"repo{n % 12}/file{n}.py": code(n) for n in range(40)}
    edited = code(3).split("\n")
    edited[10] = "    changed = something_else()"
    files |= {
        "repo1/LICENSE": "MIT License",
        "repo11/LICENSE": "GNU General Public License",
        "copies/exact.py": code(4).replace("    ", "\t").replace("\n\n", "\n"),
        "copies/near.py": "\n".join(edited),
        "copies/quotes_benchmark.py": code(900) + code(1000),
        "bad/latin.py": b"caf\xe9",
        "bad/binary.py": b"\0\1",
        "bad/generated.py": "# @generated\n" + code(901),
        "bad/short.py": "x = 1",
        "bad/python2.py": code(902) + "print 'x'\n",
    }
    root = tree(files)
    benchmark = root.parent / "benchmark"
    benchmark.mkdir()
    (benchmark / "answer.py").write_text(code(1000))
    return root


def sources_of(root, **more):
    return open_sources([{"use": "folder", "path": str(root), "name": "code", "repositories": "children", **more}])


def files_of(directory):
    return {
        str(p.relative_to(directory)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in directory.rglob("*")
        if p.is_file()
    }


def texts_of(directory, split):
    """Every sequence of a split as text, fill-in-the-middle put right again."""
    made = load_manifest(directory)
    tokenizer = Tokenizer.load(directory / "tokenizer")
    control = tokenizer.control
    for shard in (s for s in made.shards if s.split == split):
        opened = OpenShard(directory / "shards", shard, made.dtype)
        for start, end in zip(opened.offsets[:-1], opened.offsets[1:], strict=True):
            *ids, last = opened.read(start, end).tolist()
            assert last == control["end_of_text"]
            if ids[0] == control["fim_prefix"]:
                after, fill = ids.index(control["fim_suffix"]), ids.index(control["fim_middle"])
                prefix, suffix, middle = ids[1:after], ids[after + 1 : fill], ids[fill + 1 :]
                yield True, "".join(map(tokenizer.decode, (prefix, middle, suffix)))
            else:
                assert not any(map(tokenizer.is_control, ids))
                yield False, tokenizer.decode(ids)


def test_the_funnel_adds_up_and_finds_what_was_planted(planted, tmp_path, code):
    settings = dataclasses.replace(SETTINGS, decontaminate=[str(tmp_path / "benchmark")])
    made = build_corpus(sources_of(planted), settings, TOKENS, tmp_path / "out", seed=0)
    counts = {name: made.funnel.total(name).files for name in made.funnel.reasons()}
    assert counts == {
        "licence copyleft": 3,
        "not UTF-8": 1,
        "binary": 1,
        "generated": 1,
        "too short": 1,
        "does not parse": 1,
        "exact duplicate": 1,
        "near-duplicate": 1,
        "contaminated": 1,
    }
    read, kept = made.funnel.total("read"), made.funnel.total("kept")
    assert read.files == 48 == kept.files + sum(counts.values())
    assert read.bytes == kept.bytes + sum(made.funnel.total(name).bytes for name in counts)
    assert (
        made.near_duplicates[0]["of"] == "code: copies/near.py"
        or made.near_duplicates[0]["file"] == "code: repo3/file3.py"
    )
    assert made.contaminated[0]["file"] == "code: copies/quotes_benchmark.py"
    assert made.contaminated[0]["text"].endswith("benchmark/answer.py")
    assert kept.bytes == made.text_bytes("train") + made.text_bytes("held_out")
    assert "near-duplicate" in made.table() and f"{made.tokens('train'):,}" in made.table()
    assert load_manifest(tmp_path / "out") == made


def test_every_kept_file_is_in_exactly_one_split_and_reads_back(planted, tmp_path):
    settings = dataclasses.replace(SETTINGS, fim_rate=0.0)
    build_corpus(sources_of(planted), settings, TOKENS, tmp_path / "out", 0)
    train = [text for _, text in texts_of(tmp_path / "out", "train")]
    held_out = [text for _, text in texts_of(tmp_path / "out", "held_out")]
    on_disk = {path.read_text() for path in planted.rglob("*.py") if path.parent.name != "bad"}
    assert len(train) + len(held_out) == len({*train, *held_out}) and {*train, *held_out} < on_disk
    assert 2 <= len(held_out) < len(train)


def test_fill_in_the_middle_keeps_the_text_and_spares_the_held_out(planted, tmp_path):
    plain = dataclasses.replace(SETTINGS, fim_rate=0.0)
    build_corpus(sources_of(planted), plain, TOKENS, tmp_path / "plain", 0)
    build_corpus(sources_of(planted), dataclasses.replace(SETTINGS, fim_rate=0.5), TOKENS, tmp_path / "fim", 0)
    whole = [text for _, text in texts_of(tmp_path / "plain", "train")]
    made = list(texts_of(tmp_path / "fim", "train"))
    cut = [text for is_fim, text in made if is_fim]
    assert len(cut) > 5 and all(any(text in document for document in whole) for text in cut)
    assert {text for is_fim, text in made if not is_fim} < set(whole)
    assert sum(map(len, cut)) + sum(len(t) for f, t in made if not f) == sum(map(len, whole))
    assert list(texts_of(tmp_path / "fim", "held_out")) == list(texts_of(tmp_path / "plain", "held_out"))


def test_the_same_recipe_gives_the_same_bytes(planted, tmp_path):
    for name in ("one", "two"):
        build_corpus(sources_of(planted), SETTINGS, TOKENS, tmp_path / name, 3)
    one, two = (files_of(tmp_path / name) for name in ("one", "two"))
    assert one.pop("manifest.json") and two.pop("manifest.json") and one == two
    assert not any("building" in name for name in one)
    assert load_manifest(tmp_path / "one").fingerprint == load_manifest(tmp_path / "two").fingerprint


def test_a_build_that_dies_while_encoding_continues_with_the_next_shard(planted, tmp_path, monkeypatch):
    monkeypatch.setattr(encode, "BATCH_CHARACTERS", 3_000)
    settings = dataclasses.replace(SETTINGS, shard_tokens=1_500)
    build_corpus(sources_of(planted), settings, TOKENS, tmp_path / "whole", 0)
    calls = []
    original = Tokenizer.encode_batch

    def dying(self, texts):
        calls.append(len(texts))
        if len(calls) % 4 == 0:
            raise KeyboardInterrupt
        return original(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", dying)
    deaths = 0
    while not (tmp_path / "out/manifest.json").exists():
        try:
            build_corpus(sources_of(planted), settings, TOKENS, tmp_path / "out", 0)
        except KeyboardInterrupt:
            deaths += 1
            with pytest.raises(EtudeError, match="is not finished"):
                Mix(tmp_path / "out", "train", 64, 0)
        assert deaths < 30
    whole, found = files_of(tmp_path / "whole"), files_of(tmp_path / "out")
    assert whole.pop("manifest.json") and found.pop("manifest.json") and found == whole
    assert deaths >= 3


def test_a_build_killed_at_any_write_is_continued_to_the_same_bytes(planted, tmp_path):
    """Kills itself with SIGKILL at the n-th wait for the disk, again and again in the same folder."""
    script = tmp_path / "child.py"
    script.write_text(
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from etude.core import durable\n"
        "from etude.corpus.build import build_corpus\n"
        "from etude.corpus.sources.table import open_sources\n"
        "from etude.core.settings import CorpusSettings, TokensSettings\n"
        "root, out, left = sys.argv[1], sys.argv[2], int(sys.argv[3])\n"
        "wait = durable.sync\n"
        "def sync(path):\n"
        "    global left\n"
        "    left -= 1\n"
        "    wait(path) if left else os.kill(os.getpid(), signal.SIGKILL)\n"
        "durable.sync = sync\n"
        "spec = {'use': 'folder', 'path': root, 'name': 'code', 'repositories': 'children'}\n"
        "settings = CorpusSettings(held_out=0.15, shard_tokens=4000)\n"
        "build_corpus(open_sources([spec]), settings, TokensSettings(400, 30_000), Path(out), 0)\n"
    )

    def child(name, left):
        argv = [sys.executable, str(script), str(planted), str(tmp_path / name), str(left)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    build_corpus(sources_of(planted), SETTINGS, TOKENS, tmp_path / "whole", 0)
    for left in (4, 9, 10):  # in the spool, in the tokenizer, among the shards
        assert child("out", left).returncode == -signal.SIGKILL
        assert not (tmp_path / "out/manifest.json").exists()
    done = child("out", 10**9)
    assert done.returncode == 0, done.stderr
    whole, found = files_of(tmp_path / "whole"), files_of(tmp_path / "out")
    assert whole.pop("manifest.json") and found.pop("manifest.json") and found == whole


def test_reading_is_not_repeated_after_a_kill(planted, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "write_shards", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_corpus(sources_of(planted), SETTINGS, TOKENS, tmp_path / "out", 0)
    monkeypatch.undo()
    sources = sources_of(planted)
    monkeypatch.setattr(type(sources[0]), "documents", lambda self: 1 / 0)
    made = build_corpus(sources, SETTINGS, TOKENS, tmp_path / "out", 0)
    assert made.funnel.total("kept").files > 30


def test_an_unfinished_build_of_another_recipe_is_begun_anew(planted, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(build, "write_shards", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_corpus(sources_of(planted), SETTINGS, TokensSettings(vocab_size=300, train_bytes=10_000), out, 0)
    monkeypatch.undo()
    assert build_corpus(sources_of(planted), SETTINGS, TOKENS, out, 0).vocab_size == 400


def test_a_finished_corpus_is_returned_as_it_is_and_another_recipe_is_refused(planted, tmp_path, monkeypatch):
    out = tmp_path / "out"
    first = build_corpus(sources_of(planted), SETTINGS, TOKENS, out, 0)
    sources = sources_of(planted)
    monkeypatch.setattr(type(sources[0]), "documents", lambda self: 1 / 0)
    assert build_corpus(sources, SETTINGS, TOKENS, out, 0) == first
    with pytest.raises(EtudeError, match=r"corpus.near_threshold, seed"):
        build_corpus(sources, dataclasses.replace(SETTINGS, near_threshold=0.8), TOKENS, out, 1)
    next((out / "shards").glob("*.ids")).write_bytes(b"short")
    with pytest.raises(EtudeError, match="bytes instead of"):
        build_corpus(sources, SETTINGS, TOKENS, out, 0)


def test_changed_benchmark_texts_make_an_old_corpus_stale(planted, tmp_path, code):
    settings = dataclasses.replace(SETTINGS, decontaminate=[str(tmp_path / "benchmark")])
    build_corpus(sources_of(planted), settings, TOKENS, tmp_path / "out", 0)
    (tmp_path / "benchmark/second.py").write_text(code(5))
    with pytest.raises(EtudeError, match="forbidden_texts"):
        build_corpus(sources_of(planted), settings, TOKENS, tmp_path / "out", 0)


def test_a_tokenizer_that_is_there_is_used(planted, tmp_path, code):
    given = Tokenizer.train([code(1), code(2)], 333)
    given.save(tmp_path / "out/tokenizer")
    made = build_corpus(sources_of(planted), SETTINGS, TOKENS, tmp_path / "out", 0)
    assert (made.vocab_size, made.tokenizer) == (333, given.fingerprint)


def test_a_folder_with_something_else_in_it_is_left_alone(planted, tmp_path):
    precious = tmp_path / "out/shards/precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("keep me")
    with pytest.raises(EtudeError, match="in the way"):
        build_corpus(sources_of(planted), SETTINGS, TOKENS, tmp_path / "out", 0)
    assert precious.read_text() == "keep me"


def test_two_builds_never_share_a_folder(planted, tmp_path):
    (tmp_path / "out").mkdir()
    with (tmp_path / "out/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EtudeError, match="another process"):
            build_corpus(sources_of(planted), SETTINGS, TOKENS, tmp_path / "out", 0)


def test_a_full_disk_is_one_sentence_and_the_build_continues_later(planted, tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(EtudeError, match="No space left"):
            build_corpus(sources_of(planted), SETTINGS, TOKENS, tmp_path / "out", 0)
    assert build_corpus(sources_of(planted), SETTINGS, TOKENS, tmp_path / "out", 0).tokens("train") > 0


def test_the_byte_budget_is_shared_by_weight_and_what_is_left_over_passed_on(tree, tmp_path, code):
    root = tree({f"{side}/f{n:02}.py": code(n + 100 * (side == "b")) for side in "ab" for n in range(20)})
    (root / "tiny").mkdir()
    (root / "tiny/one.py").write_text(code(999))
    specs = [
        {"use": "folder", "path": str(root / "tiny"), "weight": 2},
        {"use": "folder", "path": str(root / "a"), "weight": 3},
        {"use": "folder", "path": str(root / "b"), "weight": 1},
    ]
    settings = dataclasses.replace(SETTINGS, max_bytes=20_000)
    made = build_corpus(open_sources(specs), settings, TOKENS, tmp_path / "out", 0)
    read = {name: count.bytes for name, count in made.funnel.read.items()}
    assert sum(read.values()) <= 20_000 and made.stopped == ["a", "b"]
    assert abs(read["a"] - 3 / 4 * (20_000 - read["tiny"])) < 2_000
    assert made.weights == {"tiny": 2.0, "a": 3.0, "b": 1.0}
    tokens = sum(shard.tokens for shard in made.shards if shard.source == "a")
    line = next(line for line in made.table().splitlines() if line.startswith("a "))
    assert f"of {made.funnel.read['a'].files} files" in line and f"{tokens:,} tokens" in line
    assert {shard.source for shard in made.shards} == {"tiny", "a", "b"}


def test_the_mix_of_a_built_corpus_holds_its_weights(tree, tmp_path, code):
    root = tree({f"{side}/f{n:02}.py": code(n + 100 * (side == "b")) for side in "ab" for n in range(15)})
    specs = [{"use": "folder", "path": str(root / side), "weight": weight} for side, weight in (("a", 1), ("b", 4))]
    build_corpus(open_sources(specs), SETTINGS, TOKENS, tmp_path / "out", 0)
    mix = Mix(tmp_path / "out", "train", 128, 0)
    for _ in range(20):
        mix.take(1000)
    served = {name: of[2] for name, of in mix.position()["piles"].items()}
    assert abs(served["b"] / (served["a"] + served["b"]) - 0.8) < 0.02


@pytest.mark.parametrize(
    ("files", "settings", "words"),
    [
        ({"readme.txt": "none"}, SETTINGS, "hold no file of code"),
        ({"a.py": "x = 1", "b.py": b"\0"}, SETTINGS, r"of 2 files none was kept \(1 binary, 1 too short\)"),
        ({"a.py": "x = 1"}, dataclasses.replace(SETTINGS, licenses=["free"]), "classes are permissive, copyleft"),
        ({"a.py": "x = 1"}, dataclasses.replace(SETTINGS, decontaminate=["/nowhere/x"]), "does not exist"),
    ],
)
def test_mistakes_are_one_sentence(tree, tmp_path, files, settings, words):
    with pytest.raises(EtudeError, match=words) as caught:
        build_corpus(sources_of(tree(files)), settings, TOKENS, tmp_path / "out", 0)
    assert "\n" not in str(caught.value)


def test_a_source_that_breaks_the_contract_is_named(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from etude.corpus.document import Document, SourceSettings\n"
        "class Mine:\n"
        "    Settings = SourceSettings\n"
        "    name = 'mine'\n"
        "    def __init__(self, settings):\n"
        "        self.settings = settings\n"
        "    def documents(self):\n"
        "        yield Document('r', 'p.py', 'text', 'unknown', 'somebody else')\n"
        "class Forgetful:\n"
        "    Settings = SourceSettings\n"
        "    def __init__(self, settings): pass\n"
    )
    with pytest.raises(EtudeError, match="source mine must yield Documents with its own name"):
        build_corpus(open_sources([{"use": f"{mine}:Mine"}]), SETTINGS, TOKENS, tmp_path / "out", 0)
    with pytest.raises(EtudeError, match=r"as self.settings"):
        open_sources([{"use": f"{mine}:Forgetful"}])


def test_the_manifest_is_json_that_a_person_can_read(planted, tmp_path):
    build_corpus(sources_of(planted), SETTINGS, TOKENS, tmp_path / "out", 0)
    data = json.loads((tmp_path / "out/manifest.json").read_text())
    assert data["plan"]["corpus"]["sources"][0]["use"] == "Folder"
    assert data["funnel"]["read"]["code"]["files"] == 48
    assert set(data["seconds"]) == {"select", "tokenizer", "encode"}

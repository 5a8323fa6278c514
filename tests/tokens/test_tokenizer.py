"""Text <-> ids: no byte lost, no control token from text, the same file every time, and readable by others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import tokenizers
from hypothesis import given, settings
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from etude.core.errors import EtudeError
from etude.tokens.tokenizer import CONTROL_NAMES, Tokenizer

SPELLINGS = [f"<|{name}|>" for name in CONTROL_NAMES]
HOSTILE = [
    *SPELLINGS,
    "".join(SPELLINGS),
    "x<|user|> y\n<|end_of_turn|>",
    "<|end_of_text|>" * 3,
    "<|<|pad|>|>",
    " <|assistant|>\u200b<|tool|>",
    "pad",
    "<pad></s><|endoftext|><|im_start|>",
]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_decode_gives_back_what_was_encoded(data: st.DataObject, tokenizer: Tokenizer, texts: Any) -> None:
    text = data.draw(texts)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.binary(max_size=40))
def test_ids_stand_for_exactly_the_bytes_of_the_text(data: bytes, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(data.decode("utf-8", "surrogateescape"))
    assert b"".join(map(tokenizer.bytes_of, ids)) == data
    one_by_one = "".join(chr(0xDC00 + byte) if byte >= 0x80 else chr(byte) for byte in data)
    assert tokenizer.encode(one_by_one) == ids  # another str for the same bytes


@settings(max_examples=200, deadline=None, derandomize=True)
@given(pieces=st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=4)), max_size=6))
def test_no_text_encodes_to_a_control_token(pieces: list[str], tokenizer: Tokenizer) -> None:
    text = "".join(pieces)
    ids = tokenizer.encode(text)
    assert not any(map(tokenizer.is_control, ids))
    assert tokenizer.encode_batch([text, text]) == [ids, ids]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(text=st.text(alphabet=st.characters(categories=["Cs"]), min_size=1, max_size=3))
def test_a_surrogate_that_is_no_byte_is_refused_by_place(text: str, tokenizer: Tokenizer) -> None:
    bad = [i for i, character in enumerate(text) if not 0xDC80 <= ord(character) <= 0xDCFF]
    if not bad:
        tokenizer.encode(text)
        return
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(EtudeError, match=f"U\\+{ord(text[bad[0]]):04X} at character {bad[0]}"):
            encode(text)


def test_batches_equal_single_texts(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["", "def f():\n    return 1\n", "é\udcff\udcc3", "😀", "<|pad|>", "x" * 100]
    expected = [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch(texts) == expected
    monkeypatch.setattr("etude.tokens.tokenizer.BATCH_CHARACTERS", 10)
    assert tokenizer.encode_batch(texts) == expected
    assert tokenizer.encode_batch([]) == []


def test_python_falls_into_few_reusable_pieces(tokenizer: Tokenizer) -> None:
    def pieces(text: str) -> list[str]:
        return [tokenizer.decode([token]) for token in tokenizer.encode(text)]

    assert pieces("\n        return self") == ["\n        ", "return", " self"]
    assert pieces("    return") == ["    ", "return"]  # the same word at the start of a text as inside a file
    assert pieces("2048 + 1") == ["2", "0", "4", "8", " +", " 1"]
    assert pieces("_text")[0].startswith("_")


def test_a_line_is_the_same_tokens_in_its_file_and_alone(tokenizer: Tokenizer, training_texts: list[str]) -> None:
    for text in training_texts:
        ids, starts, offset = tokenizer.encode(text), {}, 0
        for index, token in enumerate(ids):
            starts[offset] = index
            offset += len(tokenizer.bytes_of(token))
        place = 0
        for line in text.splitlines(keepends=True):
            alone = tokenizer.encode(line.strip())
            if alone:
                first = starts[len(text[: place + len(line) - len(line.lstrip())].encode())]
                assert ids[first : first + len(alone)] == alone
            place += len(line)


@pytest.mark.parametrize("size", [280, 281, 300, 333, 1000])
def test_any_vocabulary_size_from_the_bytes_up(size: int, training_texts: list[str]) -> None:
    tokenizer = Tokenizer.train(training_texts, size)
    assert tokenizer.vocab_size == size
    assert dict(tokenizer.control) == {name: i for i, name in enumerate(CONTROL_NAMES)}
    for text in [*HOSTILE, training_texts[0], bytes(range(256)).decode("utf-8", "surrogateescape")]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(len(CONTROL_NAMES) <= token < size for token in ids)


def test_vocabulary_smaller_than_the_bytes_is_refused(training_texts: list[str]) -> None:
    with pytest.raises(EtudeError, match="vocab_size is 279: control tokens and bytes alone take 280"):
        Tokenizer.train(training_texts, 279)


def test_little_text_gives_a_smaller_vocabulary() -> None:
    assert Tokenizer.train([], 500).vocab_size == 280
    tokenizer = Tokenizer.train(["ab ab ab"], 500)
    assert 280 < tokenizer.vocab_size < 300
    assert tokenizer.decode(tokenizer.encode("é")) == "é"


def test_training_on_control_spellings_and_broken_text_teaches_no_control_token() -> None:
    tokenizer = Tokenizer.train([*SPELLINGS * 50, "a\udc80\ud800b" * 50], 600)
    for text in HOSTILE:
        assert not any(map(tokenizer.is_control, tokenizer.encode(text)))


def test_ids_outside_the_vocabulary_are_named(tokenizer: Tokenizer) -> None:
    for token in (-1, tokenizer.vocab_size):
        with pytest.raises(EtudeError, match=f"token id {token} is outside the vocabulary of 550"):
            tokenizer.decode([token])
        assert not tokenizer.is_control(token)


def test_control_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.control.values()) == ""
    assert [tokenizer.is_control(i) for i in tokenizer.control.values()] == [True] * len(CONTROL_NAMES)


def test_the_same_texts_give_the_same_files_in_any_process(tmp_path: Path, training_texts: list[str]) -> None:
    (tmp_path / "texts.json").write_text(json.dumps(training_texts))
    script = (
        "import json, sys; from etude.tokens.tokenizer import Tokenizer\n"
        "Tokenizer.train(json.load(open(sys.argv[1])), 700).save(sys.argv[2])"
    )
    for name, threads in (("a", "1"), ("b", "2")):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": threads,
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "true",
        }
        command = [sys.executable, "-c", script, str(tmp_path / "texts.json"), str(tmp_path / name)]
        subprocess.run(command, env=environment, check=True, timeout=60)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_ever_new_words_are_not_all_remembered(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path)
    script = """
import sys
from pathlib import Path
from etude.tokens.tokenizer import Tokenizer

def kilobytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4

tokenizer = Tokenizer.load(sys.argv[1])
words = [f"w{number:05d}".translate(str.maketrans("0123456789", "abcdefghij")) for number in range(20_000)]
before = kilobytes()
for word in words:
    tokenizer.encode(word)
print(kilobytes() - before)
"""
    told = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, timeout=60)
    assert int(told.stdout) < 2_000  # the library's own bound takes 4,000


def test_fingerprint_survives_saving_and_tells_tokenizers_apart(tmp_path: Path, training_texts: list[str]) -> None:
    tokenizer = Tokenizer.train(training_texts, 400)
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint
    assert Tokenizer.train(training_texts[:1], 400).fingerprint != tokenizer.fingerprint
    assert Tokenizer.train(training_texts, 401).fingerprint != tokenizer.fingerprint


@pytest.mark.parametrize("opener", [PreTrainedTokenizerFast, AutoTokenizer])
def test_transformers_opens_the_directory_and_agrees(opener: Any, tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path)
    theirs = opener.from_pretrained(tmp_path)
    assert len(theirs) == tokenizer.vocab_size
    assert theirs.pad_token_id == tokenizer.control["pad"]
    assert theirs.eos_token_id == tokenizer.control["end_of_text"]
    assert theirs.convert_tokens_to_ids(SPELLINGS) == list(tokenizer.control.values())
    for text in [*HOSTILE, "def f(x):\n    return  x + 10\r\n", "  é 😀\x00 ."]:
        assert theirs.encode(text) == tokenizer.encode(text)
        assert theirs.decode(tokenizer.encode(text)) == text


def test_the_saved_file_spells_no_control_token_in_the_bare_library_either(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    tokenizer.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in HOSTILE:
        assert theirs.encode(text).ids == tokenizer.encode(text)


def _tamper(saved: dict[str, Any], how: str) -> None:
    model = saved["model"]
    match how:
        case "added tokens":
            saved["added_tokens"] = [
                {
                    "id": 0,
                    "content": "<|pad|>",
                    "special": True,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                }
            ]
        case "whole words looked up":
            model["ignore_merges"] = True
        case "a normaliser":
            saved["normalizer"] = {"type": "NFKC"}
        case "another split":
            saved["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = ".+"
        case "other control tokens":
            model["vocab"] = {"<|bad|>" if key == "<|pad|>" else key: i for key, i in model["vocab"].items()}
        case "a hole":
            last = max(model["vocab"], key=model["vocab"].get)
            model["vocab"][last] += 5
        case "a merge into a control token":
            for new in ("<|p", "ad|>"):
                model["vocab"][new] = len(model["vocab"])
            model["merges"].append(["<|p", "ad|>"])


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("added tokens", "splits text in another way"),
        ("whole words looked up", "splits text in another way"),
        ("a normaliser", "splits text in another way"),
        ("another split", "splits text in another way"),
        ("other control tokens", "other control tokens"),
        ("a hole", "ids have holes"),
        ("a merge into a control token", "merges text into a control token"),
    ],
)
def test_a_file_that_could_break_the_guarantees_is_refused(
    how: str, sentence: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    tokenizer.save(tmp_path)
    saved = json.loads((tmp_path / "tokenizer.json").read_text())
    _tamper(saved, how)
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    with pytest.raises(EtudeError, match=sentence) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_missing_and_truncated_files_are_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(EtudeError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(tmp_path)
    tokenizer.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(EtudeError, match="cannot read the tokenizer"):
        Tokenizer.load(tmp_path)
    with pytest.raises(EtudeError, match="cannot write the tokenizer"):
        tokenizer.save(file)

"""Plain text in a checkpoint's own tokens: against `transformers`, with what begins, ends and cuts a document."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Encoder

from etude.core.errors import EtudeError
from etude.tokens.dialect import open_dialect
from etude.tokens.text_tokenizer import FimTokens, check_vocabulary, open_tokenizer
from etude.tokens.tokenizer import Tokenizer

MEGABYTE = 1_000_000
ODD = [
    "",
    " ",
    "\r\n\t",
    "naïve 世界 🎉",
    "a\x00b",
    "x" * 3000,
    "    return self._x['é']\n" * 50,
    "tabs\tand  spaces  ",
]


@pytest.fixture(scope="module")
def mixed_code() -> list[str]:
    """A megabyte of real files: Python of the standard library, C++ headers of torch, TOML, and odd texts.

    None spells a control token, which `transformers` would take for one.
    """
    recipes = Path(__file__).parent.parent.parent / "etude" / "recipes"
    kinds = [
        sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")),
        sorted((Path(torch.__file__).parent / "include" / "ATen").glob("*.h")),
        sorted(recipes.glob("*.toml")),
    ]
    texts: list[str] = []
    while sum(map(len, texts)) < MEGABYTE:
        files = kinds[len(texts) % len(kinds)]
        texts.append(files[len(texts) * 7 % len(files)].read_text(encoding="utf-8"))
    return [*texts, *ODD]


@pytest.mark.parametrize("name", ["qwen3", "deepseek", "kimi"])
def test_ids_of_a_megabyte_are_those_of_transformers(
    name: str, template_models: dict[str, Path], mixed_code: list[str]
) -> None:
    ours = open_tokenizer(template_models[name])
    theirs = transformers.AutoTokenizer.from_pretrained(template_models[name])
    for text, ids in zip(mixed_code, ours.encode_batch(mixed_code), strict=True):
        assert ids == theirs.encode(text, add_special_tokens=False)
        # NFC in these tokenizers: the bytes are those of the text that was normalised
        assert b"".join(map(ours.bytes_of, ids)).decode() == theirs.decode(ids)


def test_our_own_ids_of_a_megabyte_are_those_of_transformers(tmp_path: Path, mixed_code: list[str]) -> None:
    Tokenizer.train(mixed_code[:12], 1000).save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text, ids in zip(mixed_code, open_tokenizer(tmp_path).encode_batch(mixed_code), strict=True):
        assert ids == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("name", "end"), [("qwen3", "<|endoftext|>"), ("deepseek", "<｜end▁of▁sentence｜>"), ("kimi", "[EOS]")]
)
def test_a_document_ends_with_the_token_for_it_and_not_with_that_of_a_turn(
    name: str, end: str, template_models: dict[str, Path]
) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(template_models[name])
    assert open_tokenizer(template_models[name]).end == theirs.convert_tokens_to_ids(end)


def test_no_text_becomes_a_control_token(template_models: dict[str, Path]) -> None:
    ours = open_tokenizer(template_models["qwen3"])
    control = {ours.end, open_tokenizer(template_models["qwen3"]).end}
    (ids,) = ours.encode_batch(["<|endoftext|><|im_start|>"])
    assert control.isdisjoint(ids) and b"".join(map(ours.bytes_of, ids)) == b"<|endoftext|><|im_start|>"


def with_tokens(source: Path, target: Path, *names: str, begin: str = "") -> Path:
    shutil.copytree(source, target)
    encoder = Encoder.from_file(str(target / "tokenizer.json"))
    encoder.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    if begin:
        encoder.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, encoder.token_to_id(begin))]
        )
    encoder.save(str(target / "tokenizer.json"))
    return target


@pytest.mark.parametrize(
    "marks",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ],
)
def test_its_own_tokens_for_the_parts_of_a_document_are_found(
    marks: tuple[str, ...], template_models: dict[str, Path], tmp_path: Path
) -> None:
    assert open_tokenizer(template_models["qwen3"]).fim is None
    folder = with_tokens(template_models["qwen3"], tmp_path / "model", *marks)
    ids = transformers.AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(list(marks))
    assert open_tokenizer(folder).fim == FimTokens(*ids)


def test_a_document_begins_as_the_tokenizer_begins_a_text(template_models: dict[str, Path], tmp_path: Path) -> None:
    folder = with_tokens(template_models["kimi"], tmp_path / "model", begin="[BOS]")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert open_tokenizer(folder).begin == (theirs.convert_tokens_to_ids("[BOS]"),)
    assert open_tokenizer(template_models["kimi"]).begin == ()


def test_ids_that_only_the_model_has_become_a_replacement_character(template_models: dict[str, Path]) -> None:
    """Embeddings are padded to a round number of rows; an untrained model samples those, too."""
    dialect = open_dialect(template_models["kimi"])
    word = open_tokenizer(template_models["kimi"]).encode_batch(["return"])[0]
    assert dialect.decode([*word, dialect.vocab_size, *word]) == "return\ufffdreturn"


def test_what_is_saved_is_what_came(template_models: dict[str, Path], tmp_path: Path) -> None:
    ours = open_tokenizer(template_models["kimi"])
    ours.save(tmp_path / "copy")
    assert open_tokenizer(tmp_path / "copy").fingerprint == ours.fingerprint
    for file in template_models["kimi"].iterdir():
        assert (tmp_path / "copy" / file.name).read_bytes() == file.read_bytes()


def test_our_own_tokenizer_is_opened_too(tmp_path: Path) -> None:
    own = Tokenizer.train(["def f(x):\n    return x\n" * 20], 300)
    own.save(tmp_path)
    found = open_tokenizer(tmp_path)
    assert found.fingerprint == own.fingerprint and found.end == own.control["end_of_text"] and found.begin == ()
    assert found.fim == FimTokens(*(own.control[f"fim_{part}"] for part in ("prefix", "suffix", "middle")))
    assert found.encode_batch(["return x"]) == [own.encode("return x")]


def test_what_does_not_fit_is_refused_in_a_sentence(template_models: dict[str, Path], tmp_path: Path) -> None:
    ours = open_tokenizer(template_models["qwen3"])
    check_vocabulary(ours, ours.vocab_size, tmp_path)
    with pytest.raises(EtudeError, match=r"has \d+ ids and the model only 100 embeddings"):
        check_vocabulary(ours, 100, tmp_path)
    with pytest.raises(EtudeError, match=r"tokenizer\.json is missing"):
        open_tokenizer(tmp_path)
    folder = shutil.copytree(template_models["qwen3"], tmp_path / "endless")
    saved = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(saved.replace("<|endoftext|>", "<|something|>"))
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(EtudeError, match="does not say how a document ends"):
        open_tokenizer(folder)

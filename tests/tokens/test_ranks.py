"""Kimi's `tiktoken.model`: the converted tokenizer splits and merges as the file's own rules say."""

from __future__ import annotations

import base64
import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
import regex

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, User
from etude.tokens.dialect import open_dialect
from etude.tokens.render import Rendered
from etude.tokens.tiktoken_ranks import PATTERN

TEXT = (
    "def add(a, b):\n    return a + b  # it's 12345 中文English混合 DON'T\r\n\r\n  Hello, HELLO world! 你好世界 été\n"
    * 3
)


def learn(text: str, size: int) -> dict[bytes, int]:
    """Ranks as such files have them: the bytes, then the most frequent pair again and again."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    words = [[bytes([b]) for b in word.encode()] for word in regex.findall(PATTERN, text, regex.V1)]
    while len(ranks) < size:
        pairs: dict[bytes, int] = {}
        for word in words:
            for left, right in pairwise(word):
                pairs[left + right] = pairs.get(left + right, 0) + 1
        best = max(sorted(pairs), key=pairs.__getitem__)
        ranks[best] = len(ranks)
        for word in words:
            for place in range(len(word) - 1, 0, -1):
                if word[place - 1 : place + 1] and word[place - 1] + word[place] == best:
                    word[place - 1 : place + 1] = [best]
    return ranks


def encode(text: str, ranks: dict[bytes, int]) -> list[int]:
    """The plain algorithm: in each word the adjacent pair of the lowest rank is merged until none is left."""
    ids = []
    for word in regex.findall(PATTERN, text, regex.V1):
        data = word.encode()
        parts = [data] if data in ranks else [bytes([byte]) for byte in data]
        while len(parts) > 1:
            pairs = [(ranks.get(a + b, 10**9), place) for place, (a, b) in enumerate(pairwise(parts))]
            rank, place = min(pairs)
            if rank == 10**9:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        ids += [ranks[part] for part in parts]
    return ids


@pytest.fixture(scope="session")
def kimi(tmp_path_factory: pytest.TempPathFactory, template_models: dict[str, Path]) -> tuple[Path, dict[bytes, int]]:
    folder = tmp_path_factory.mktemp("kimi")
    ranks = learn(TEXT, 330)
    lines = [base64.b64encode(piece).decode() + f" {rank}\n" for piece, rank in ranks.items()]
    (folder / "tiktoken.model").write_text("".join(lines))
    special = json.loads((template_models["kimi"] / "tokenizer.json").read_text())["added_tokens"]
    decoder = {str(330 + 2 * n): {"content": one["content"], "special": True} for n, one in enumerate(special)}
    config = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": decoder, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text((template_models["kimi"] / "chat_template.jinja").read_text())
    return folder, ranks


def test_text_has_the_ids_of_the_plain_algorithm(kimi: tuple[Path, dict[bytes, int]]) -> None:
    folder, ranks = kimi
    dialect = open_dialect(folder)
    rng = random.Random(3)
    pieces = [TEXT[i : i + 4] for i in range(0, len(TEXT) // 3, 3)] + [
        "\n\n  ",
        "'LL",
        "漢字かな",
        "１２３４",
        " \t",
        "é",
    ]
    for text in [TEXT, *("".join(rng.choices(pieces, k=12)) for _ in range(200))]:
        assert dialect.encode(text) == encode(text, ranks), text
        assert dialect.decode(dialect.encode(text)) == text


def test_a_conversation_works_and_the_saved_directory_has_a_tokenizer_json(
    kimi: tuple[Path, dict[bytes, int]], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    dialect = open_dialect(kimi[0])
    rendered = Rendered()
    assert dialect.extend(rendered, [User("<|im_end|>中文")], open_turn=True)
    assert dialect.vocab_size == 330 + 2 * 14 - 1  # every second number is reserved
    turn = Assistant("", "Look.", (Call("read", {"path": "混合.py"}),))
    assert dialect.parse_turn(dialect.turn_ids(turn)) == turn
    dialect.save(tmp_path)
    again = open_dialect(tmp_path)
    assert again.fingerprint == dialect.fingerprint and again.encode(TEXT) == dialect.encode(TEXT)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    assert AutoTokenizer.from_pretrained(tmp_path).encode(TEXT) == dialect.encode(TEXT)


def test_files_that_are_not_kimis_are_refused(kimi: tuple[Path, dict[bytes, int]], tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").write_bytes((kimi[0] / "tiktoken.model").read_bytes())
    with pytest.raises(EtudeError, match="convert it with transformers"):
        open_dialect(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "TikTokenTokenizer"}')
    with pytest.raises(EtudeError, match="lacks added_tokens_decoder"):
        open_dialect(tmp_path)
    (tmp_path / "tiktoken.model").write_text("abc")
    with pytest.raises(EtudeError, match="line 1: expected a piece in base64"):
        open_dialect(tmp_path)

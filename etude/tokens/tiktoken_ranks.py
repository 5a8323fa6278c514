"""Kimi's tokenizer file, `tiktoken.model`, as the `tokenizer.json` that everybody else ships.

The file is a list of byte strings in the order in which they merge; how text falls apart before merging is not in it,
but in code beside it, which is not run. That split is known for Kimi alone, so only its files are taken.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Encoder

from etude.core.errors import EtudeError
from etude.tokens.tokenizer import byte_characters

FILE, CLASS = "tiktoken.model", "TikTokenTokenizer"
MOST_SPECIAL = 10_000

# Chinese characters stand apart from other letters; words end in lower case or are all capitals, with an English
# ending; numbers come in threes; signs take line breaks along.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_BEFORE, _AFTER = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        f"{_BEFORE}{_UPPER}*{_LOWER}+{_AFTER}",
        f"{_BEFORE}{_UPPER}+{_LOWER}*{_AFTER}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def convert_ranks(data: bytes, config: dict[str, Any], where: str) -> bytes:
    """The `tokenizer.json` for a `tiktoken.model`, with the special tokens of its `tokenizer_config.json`."""
    if config.get("tokenizer_class") != CLASS:
        raise EtudeError(
            f"{where} has a {FILE} but no tokenizer.json, and says neither that it is Kimi's nor how it splits text: "
            "convert it with transformers and put the tokenizer.json there"
        )
    ranks = _read(data, where)
    characters = byte_characters()
    names = {piece: "".join(characters[byte] for byte in piece) for piece in ranks}
    merges = [
        (rank, ranks[piece[:cut]], ranks[piece[cut:]], names[piece[:cut]], names[piece[cut:]])
        for piece, rank in ranks.items()
        for cut in range(1, len(piece))
        if piece[:cut] in ranks and piece[cut:] in ranks
    ]
    vocabulary = {names[piece]: rank for piece, rank in ranks.items()}
    # A word that is an entry as a whole is that entry, whether or not merges lead to it.
    model = models.BPE(vocabulary, [(left, right) for *_, left, right in sorted(merges)], ignore_merges=True)
    encoder = Encoder(model)
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    encoder.decoder = decoders.ByteLevel()
    saved = json.loads(encoder.to_str())
    saved["added_tokens"] = _added(config.get("added_tokens_decoder"), max(ranks.values(), default=-1) + 1, where)
    return json.dumps(saved, ensure_ascii=False).encode()


def _read(data: bytes, where: str) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            piece, rank = line.split()
            ranks[base64.b64decode(piece, validate=True)] = int(rank)
        except ValueError:
            raise EtudeError(f"{where}/{FILE}, line {number}: expected a piece in base64 and its rank") from None
    return ranks


def _added(listed: Any, first: int, where: str) -> list[dict[str, Any]]:
    """The special tokens in the form of `tokenizer.json`; numbers that nothing is said about are reserved."""
    try:
        known = {
            int(number): (str(facts["content"]), bool(facts.get("special", True))) for number, facts in listed.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        known = {}
    if not known or min(known) < first or max(known) > first + MOST_SPECIAL:
        raise EtudeError(
            f"{where}/tokenizer_config.json lacks added_tokens_decoder, the special tokens behind the others"
        )
    added = []
    for number in range(first, max(known) + 1):
        content, special = known.get(number, (f"<|reserved_token_{number}|>", True))
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
        added.append({"id": number, "content": content} | flags)
    return added

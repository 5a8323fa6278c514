"""The tokenizer of a loaded checkpoint: its `tokenizer.json`, through the `tokenizers` library.

Two encoders share one vocabulary. The real one knows the added tokens and reads what a chat template wrote, as
`transformers` would; the plain one has none of them and reads text of users, tools and files, so that no spelling of a
control token can turn into one. Only byte-level vocabularies are taken (Qwen, DeepSeek, Kimi, Llama 3 and most others),
because in them every id stands for bytes and nothing is lost.

Knows nothing of messages and templates.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, takewhile
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Encoder

from etude.core.errors import EtudeError
from etude.tokens.tokenizer import batches, bound_cache, is_plain, split_bytes, to_bytes, to_text, token_bytes

MARKUP = re.compile(r"[<>\[\]|｜]")  # an added token without any of these that is not special is only text
REPLACEMENT = "\ufffd".encode()
UNKNOWN = "unknown"  # the mark of an id that is in no vocabulary


@dataclass(frozen=True)
class MarkedText:
    """A mark (a control token, or a mark of a tool-call format) and the text up to the next; '' before the first."""

    mark: str
    text: str
    start: int  # the token that the mark begins in
    literal: bool = False  # spelled in ordinary tokens, where the vocabulary has no token for it


class Vocabulary:
    """Text <-> ids of one `tokenizer.json`."""

    def __init__(self, data: bytes, path: Path) -> None:
        """Takes the contents of a `tokenizer.json`; `path` names it in errors."""
        try:
            saved = json.loads(data)
            # A file may ask for truncation or padding, which would change prompts in silence.
            saved |= {"truncation": None, "padding": None}
            added: list[dict[str, Any]] = saved.get("added_tokens") or []
            self.control: dict[str, int] = {one["content"]: one["id"] for one in added if _is_control(one)}
            self._real = Encoder.from_str(json.dumps(saved))
            self._plain = Encoder.from_str(json.dumps(_without(saved, self.control)))
        except Exception as error:  # the library raises bare Exception for whatever it cannot read
            raise EtudeError(f"cannot read the tokenizer {path}: {error}") from None
        bound_cache(self._real)
        bound_cache(self._plain)
        self._trims = {one["content"]: (one.get("lstrip"), one.get("rstrip")) for one in added}
        self.spelling = {number: spelling for spelling, number in self.control.items()}
        self._bytes = self._table(saved, added, path)
        self.size = len(self._bytes)
        self._byte_ids = {data[0]: number for number, data in enumerate(self._bytes) if len(data) == 1}
        if len(self._byte_ids) != 256:
            raise EtudeError(f"{path} lacks some of the 256 single bytes, so not all text could be said in it")
        if moved := [one["content"] for one in added if self._real.token_to_id(one["content"]) != one["id"]]:
            raise EtudeError(f"{path} gives {moved[0]!r} a number that leaves a gap before it, which cannot be loaded")
        longest_first = sorted(self.control, key=len, reverse=True)
        self.control_pattern = "|".join(map(re.escape, longest_first)) or r"(?!)"
        self._split = re.compile(self.control_pattern)

    def _table(self, saved: dict[str, Any], added: list[dict[str, Any]], path: Path) -> list[bytes]:
        """The bytes of every id; none for control tokens and for ids that the file leaves out."""
        vocabulary: dict[str, int] = self._real.get_vocab(with_added_tokens=False)
        table = [b""] * (1 + max([*vocabulary.values(), *(one["id"] for one in added)], default=-1))
        special = {one["id"]: one["content"] for one in added}
        for token, number in vocabulary.items():
            if number in special:
                continue
            try:
                table[number] = token_bytes(token)
            except EtudeError:
                kind = saved.get("model", {}).get("type")
                raise EtudeError(
                    f"{path} is no byte-level tokenizer (its model is {kind}, with an entry {token!r:.40}); models of "
                    "Qwen, DeepSeek, Kimi and Llama 3 have one, others cannot be loaded"
                ) from None
        for number, content in special.items():
            if content not in self.control:
                table[number] = content.encode()
        return table

    def encode(self, text: str) -> list[int]:
        """Ids of a text; never a control token, whatever the text spells."""
        if is_plain(text):
            ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        else:
            ids = []
            for piece in split_bytes(text):
                ids += [self._byte_ids[piece]] if isinstance(piece, int) else self.encode(piece)
        self._check_plain(ids)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts, on as many threads as RAYON_NUM_THREADS and TOKENIZERS_PARALLELISM allow."""
        found: list[list[int]] = []
        for batch in batches(texts):
            if not all(map(is_plain, batch)):
                found.extend(map(self.encode, batch))
                continue
            encoded = [one.ids for one in self._plain.encode_batch_fast(batch, add_special_tokens=False)]
            self._check_plain(chain.from_iterable(encoded))
            found.extend(encoded)
        return found

    @cached_property
    def begin(self) -> tuple[int, ...]:
        """Control tokens that the file puts before every text: <s> and the like; those behind it end a text."""
        around = self._real.encode("a", add_special_tokens=True).ids
        return tuple(takewhile(self.spelling.__contains__, around))

    def _check_plain(self, ids: Iterable[int]) -> None:
        # Checked and not assumed: merges of a file from elsewhere may still lead to one.
        if not self.spelling.keys().isdisjoint(ids):
            raise EtudeError("the tokenizer merges plain text into a control token: it cannot be used")

    def encode_written(self, text: str, restore: Callable[[str], str] | None = None) -> list[int]:
        """Ids of what a template wrote: a spelled control token is that token.

        With `restore`, each stretch between control tokens goes through it before it is encoded as plain text.
        """
        if restore is None and is_plain(text):
            ids: list[int] = self._real.encode(text, add_special_tokens=False).ids
            return ids
        ids, at, strip = [], 0, False
        for found in [*self._split.finditer(text), None]:
            stretch = text[at : found.start() if found else len(text)]
            left, right = self._trims[found.group()] if found else (False, False)
            stretch = stretch.lstrip() if strip else stretch
            stretch = stretch.rstrip() if left else stretch
            if stretch:
                ids += self.encode(restore(stretch) if restore else stretch)
            if found:
                ids.append(self.control[found.group()])
                at, strip = found.end(), bool(right)
        return ids

    def begins_with_control(self, text: str, place: int) -> bool:
        return self._split.match(text, place) is not None

    def bytes_of(self, token: int) -> bytes:
        if not 0 <= token < self.size:
            raise EtudeError(f"token id {token} is outside the vocabulary of {self.size} entries")
        return self._bytes[token]

    def decode(self, ids: Iterable[int]) -> str:
        """Ids behind the vocabulary become U+FFFD: many models have rows for more ids than their tokenizer."""
        return to_text(b"".join(self._bytes[token] if 0 <= token < self.size else REPLACEMENT for token in ids))

    def pieces(self, ids: Sequence[int], marks: Iterable[str] = ()) -> Iterator[MarkedText]:
        """Sampled ids, cut at control tokens and at those of `marks` that are text here. Never raises."""
        spelled = [mark for mark in marks if mark not in self.control]
        literal = re.compile("|".join(map(re.escape, spelled)) or r"(?!)")
        mark, start = "", 0
        for position, token in enumerate(ids):
            known = 0 <= token < self.size
            if known and token not in self.spelling:
                continue
            begin = start if not mark else start + 1
            yield from self._literals(mark, start, ids[begin:position], begin, literal)
            mark, start = self.spelling[token] if known else UNKNOWN, position
        begin = start if not mark else start + 1
        yield from self._literals(mark, start, ids[begin:], begin, literal)

    def _literals(
        self, mark: str, start: int, ids: Sequence[int], begin: int, literal: re.Pattern[str]
    ) -> Iterator[MarkedText]:
        text = self.decode(ids)
        found = list(literal.finditer(text))
        if mark or not found or found[0].start() > 0:
            yield MarkedText(mark, text[: found[0].start()] if found else text, start)
        if found:
            ends = list(accumulate(len(self._bytes[token]) for token in ids))
            for match, after in zip(found, [*found[1:], None], strict=True):
                token = begin + bisect_right(ends, len(to_bytes(text[: match.start()])))
                yield MarkedText(
                    match.group(), text[match.end() : after.start() if after else None], token, literal=True
                )


def _is_control(added: dict[str, Any]) -> bool:
    return bool(added.get("special")) or MARKUP.search(added["content"]) is not None


def _without(saved: dict[str, Any], control: dict[str, int]) -> dict[str, Any]:
    """The tokenizer in which no text can become a control token: neither by matching nor by merging."""
    model = dict(saved["model"])
    if isinstance(model.get("vocab"), dict):
        pairs = model.get("merges", ())
        merged = {"".join(pair) if isinstance(pair, list) else pair.replace(" ", "", 1) for pair in pairs}
        model["vocab"] = {t: n for t, n in model["vocab"].items() if t not in control or t in merged}
    kept = [one for one in saved.get("added_tokens") or [] if one["content"] not in control]
    return {**saved, "model": model, "added_tokens": kept, "post_processor": None}

"""Fill-in-the-middle: part of the documents are cut in three and put into another order.

    prefix-suffix-middle   <fim_prefix> prefix <fim_suffix> suffix <fim_middle> middle
    suffix-prefix-middle   <fim_prefix> <fim_suffix> suffix <fim_middle> prefix middle

Cuts fall on characters, not on tokens, since a cursor stands anywhere, and the three parts are encoded apart, as
they are when a model is asked. A long document becomes several examples that each fit a training sequence: cut
in half, an example would teach nothing. Knows the three tokens and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from etude.corpus.stable_random import stable_hash, stable_share
from etude.tokens.text_tokenizer import FimTokens

SHORTEST = 3  # characters: one for each part


@dataclass(frozen=True)
class Example:
    """A text cut in three."""

    prefix: str
    middle: str
    suffix: str
    suffix_first: bool


def is_chosen(seed: int, repo: str, path: str, rate: float) -> bool:
    return stable_share(seed, "fim", repo, path) < rate


def make_examples(text: str, window: int, seed: int, repo: str, path: str) -> Iterator[Example]:
    """The whole document as examples of about `window` characters at most."""
    for number, piece in enumerate(_windows(text, window)):
        if len(piece) < SHORTEST:
            continue
        # From names alone: a build that was killed continues to the same bytes.
        drawn = stable_hash(seed, "cut", repo, path, number)
        one = 1 + (drawn & 0xFFFF_FFFF) % (len(piece) - 1)
        two = 1 + (drawn >> 32 & 0x7FFF_FFFF) % (len(piece) - 2)
        two += two >= one  # two different places strictly inside, so no part is empty
        start, end = sorted((one, two))
        yield Example(piece[:start], piece[start:end], piece[end:], bool(drawn >> 63))


def order_ids(
    prefix: Sequence[int], middle: Sequence[int], suffix: Sequence[int], suffix_first: bool, marks: FimTokens
) -> list[int]:
    """The ids of an example, given those of its parts."""
    if suffix_first:
        return [marks.prefix, marks.suffix, *suffix, marks.middle, *prefix, *middle]
    return [marks.prefix, *prefix, marks.suffix, *suffix, marks.middle, *middle]


def _windows(text: str, window: int) -> Iterator[str]:
    """Whole lines gathered up to `window` characters; a line longer than that is cut. No piece is a mere crumb."""
    start = 0
    while start < len(text):
        end = len(text)
        if end - start >= window + SHORTEST:
            end = text.rfind("\n", start + SHORTEST - 1, start + window) + 1 or start + window
        yield text[start:end]
        start = end

"""How a commit's change is asked for: by its subject; where it has none, as missing code is. Knows no change."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any, Final

from etude.forge.languages.base import Repository
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.code_change import CodeChange
from etude.forge.steps.code_change_instructions import (
    FEW,
    in_words,
    kind_of_feature,
    missing_code,
    public_first,
    quoted_files,
    quoted_tests,
    specification,
    titles_of_tests,
    unseen_names,
)
from etude.forge.steps.instructions import Instructions, with_typo

FIX_WORDS: Final = re.compile(
    r"\b(fix|fixes|fixed|bug|bugs|regression|crash|wrong|error|issue|broken)\b", re.IGNORECASE
)
INTRO: Final = "This is the code that has to be changed or added for it."
PLACES: Final = (
    "This is about {names} in {files}.",
    "The place to look at is {files}, {names} in particular.",
    "As far as I can see it takes changes to {names} in {files}.",
)
AFTERWARDS: Final = (
    "{tests} should pass afterwards.",
    "I would expect {tests} to pass then.",
    "There are tests for it already: {tests}.",
)


def instruct(repository: Repository[Any], proof: CodeChange, rng: random.Random) -> Instructions:
    candidate, split = proof.candidate, proof.split
    if not candidate.about:
        return missing_code(repository, candidate, split, proof.output, rng, reverted=True, named=0)
    unseen = unseen_names(repository, candidate, split)
    where = in_words([f"`{piece.name}`" for piece in public_first(candidate.pieces)[:FEW]])
    after = f" {rng.choice(AFTERWARDS).format(tests=quoted_tests(split))}" if split.shown else ""
    place = rng.choice(PLACES).format(names=where, files=quoted_files(candidate))
    plain = f"{candidate.about}\n\n{place}{after}{unseen}\n"
    terse = _terse(candidate, titles_of_tests(repository, candidate, split), rng) + unseen
    detailed = specification(repository, candidate, split, proof.output, candidate.about, INTRO)
    return Instructions(category(candidate), terse, plain, detailed)


def category(candidate: Candidate) -> str:
    """What kind of work it is, by what its author called it."""
    return "debugging" if FIX_WORDS.search(candidate.about) else kind_of_feature(candidate)


def _terse(candidate: Candidate, tests: Sequence[str], rng: random.Random) -> str:
    changed = {part for piece in candidate.pieces for part in piece.name.split(".")}
    first = re.match(r"[A-Z][a-z]+(?!\w)", candidate.about)
    ordinary = first is not None and first[0] not in changed
    text = candidate.about[0].lower() + candidate.about[1:] if ordinary else candidate.about
    hint = ""
    if changed.isdisjoint(re.findall(r"\w+", text)):
        # Many a subject says nothing to somebody who has not seen the change, and a failing test alone says little.
        pieces = public_first(candidate.pieces)
        verb = "has" if len(tests) == 1 else "have"
        hint = f" - {in_words(tests)} {verb} to pass" if tests else ""
        hint += f" ({in_words([piece.name for piece in pieces[:FEW]], max(0, len(pieces) - FEW))})"
    return with_typo(text, rng, changed) + hint

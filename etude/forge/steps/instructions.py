"""What the agent is told, three times: in a hurry and a little sloppy, as an ordinary issue, as a full specification.

The specification names every symbol that the failing tests take from the project, with signatures and docstrings of
what is missing. Terse and plain name what nobody could find out from what is left. Knows the candidate, its tests'
names and sources, and no answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from etude.forge.languages.base import Repository
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.hide_tests import Split
from etude.tasks.format.config import PromptStyle

MOST_NAMES: Final = 6  # in a sentence
FEW: Final = 3  # in a hurry
MOST_TESTS: Final = 12  # in a list
LONGEST_DOC: Final = 40  # lines
SLOPPY: Final = 0.5  # share of terse instructions with a slip of the keyboard

TERSE_LOST = (
    "{names} got lost, put it back",
    "need {names} again, tests are red",
    "reimplement {names}",
    "somebody dropped {names}, please restore. tests should pass again",
    "{names} - bring back like before",
)
TERSE_BUG = (
    "{tests} fails, fix it",
    "{tests} broke, can you have a look",
    "something is off in {files}, {tests} is red",
    "fix {tests}",
)
FIX_WORDS = re.compile(r"\b(fix|fixes|fixed|bug|bugs|regression|crash|wrong|error|issue|broken)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Instructions:
    """A category of the published taxonomy, and the instruction by register."""

    category: str
    by_register: dict[PromptStyle, str]


def tell(
    world: Repository[Any], candidate: Candidate, split: Split, said: dict[str, str], rng: random.Random
) -> Instructions:
    prompt_styles: dict[PromptStyle, str] = {
        "terse": _terse(world, candidate, split, rng),
        "plain": _plain(world, candidate, split),
        "detailed": _detailed(world, candidate, split, said),
    }
    return Instructions(category(candidate), prompt_styles)


def category(candidate: Candidate) -> str:
    """What kind of work it is: whole symbols are a new feature, bodies a feature that is carried on."""
    if candidate.origin == "bug" or (candidate.origin == "commit" and FIX_WORDS.search(candidate.about)):
        return "debugging"
    return "new feature" if any(piece.gone for piece in candidate.pieces) else "feature iteration"


def _terse(world: Repository[Any], candidate: Candidate, split: Split, rng: random.Random) -> str:
    files = " and ".join(sorted(candidate.changes)[:3])
    tests = " and ".join(dict.fromkeys(map(world.title, split.shown[:2])))
    if candidate.origin == "commit" and candidate.about:
        changed = {part for piece in candidate.pieces for part in piece.name.split(".")}
        first = re.match(r"[A-Z][a-z]+(?!\w)", candidate.about)
        ordinary = first is not None and first[0] not in changed
        text = candidate.about[0].lower() + candidate.about[1:] if ordinary else candidate.about
        # Many a subject says nothing to somebody who has not seen the change.
        if tests and changed.isdisjoint(re.findall(r"\w+", text)):
            return sloppy(text, rng, changed) + f" - {tests} has to pass" + _unseen_names(world, candidate, split)
        return sloppy(text, rng, changed) + _unseen_names(world, candidate, split)
    if candidate.origin == "bug":
        return sloppy(rng.choice(TERSE_BUG), rng).format(tests=tests, files=files)
    names = ", ".join(_short_names(candidate.pieces)[:FEW])
    many = len(candidate.pieces) > FEW
    names += f" and {len(candidate.pieces) - FEW} more" if many else ""
    where = f" ({files})" if many or rng.random() < 0.6 else ""
    return sloppy(rng.choice(TERSE_LOST), rng).format(names=names + where) + _unseen_names(world, candidate, split)


def _plain(world: Repository[Any], candidate: Candidate, split: Split) -> str:
    where = ", ".join(f"`{path}`" for path in sorted(candidate.changes)[:MOST_NAMES])
    tests = _quoted(split.shown)
    if candidate.origin == "bug":
        return (
            f"Tests fail: {tests}.\n\nThey passed before, and the tests are right. "
            f"The mistake is somewhere in {where}. Please find and mend it; nothing else should change.\n"
        )
    if candidate.origin == "commit" and candidate.about:
        missing = _unseen_names(world, candidate, split)
        return f"{candidate.about}\n\nThis concerns {where}. {tests} should pass afterwards.{missing}\n"
    lines = [f"{_missing(candidate.pieces)}\n"]
    for piece in candidate.pieces[:MOST_NAMES]:
        summary = piece.doc.strip().partition("\n\n")[0].replace("\n", " ") if piece.doc else ""
        lines.append(f"- `{piece.name}` in `{piece.path}`{': ' if summary else ''}{' '.join(summary.split())}")
    rest = _unseen_names(world, candidate, split)
    verb = "pass" if len(split.shown) > 1 else "passes"
    lines.append(f"\nPlease implement this again so that {tests} {verb}, and keep everything else working.{rest}")
    return "\n".join(lines) + "\n"


def _detailed(world: Repository[Any], candidate: Candidate, split: Split, said: dict[str, str]) -> str:
    pieces = candidate.pieces
    if candidate.origin == "bug":
        title = "Wrong behaviour in " + ", ".join(f"`{piece.name}`" for piece in pieces[:MOST_NAMES])
        intro = "Something in the functions below does not do what it should. Find out what, and mend it there."
    elif candidate.about:
        title, intro = candidate.about, "The code below has to be changed or added for this."
    else:
        title, intro = _missing(pieces), "Write it again as specified here; callers and tests rely on these names."
    parts = [f"# {title.rstrip('.')}", intro, "## Where"]
    for path in sorted({piece.path for piece in pieces}):
        parts.append(f"### `{path}`")
        parts += [_spec(piece, candidate, world.manner.fence) for piece in pieces if piece.path == path]
    used = world.used_names([*split.shown, *split.held_out])
    if used:
        parts += ["## What the tests use", "\n".join(f"- {line}" for line in used)]
    parts += ["## Tests", _tests(split, said)]
    parts.append("Tests that are not in the repository check the same behaviour with other cases.")
    return "\n\n".join(parts) + "\n"


def _spec(piece: RemovedCode, candidate: Candidate, fence: str) -> str:
    state = (
        "changed"
        if candidate.origin != "deletion" and not piece.gone
        else "missing"
        if piece.gone
        else "without a body"
    )
    owner = piece.name.rpartition(".")[0]
    text = f"`{piece.name}` ({state}{f', in class `{owner}`' if owner else ''}):\n\n```{fence}\n{piece.signature}\n```"
    doc = piece.doc.strip().splitlines()
    if doc:
        text += "\n\n" + "\n".join(f"> {line}".rstrip() for line in doc[:LONGEST_DOC])
    return text


def _tests(split: Split, said: dict[str, str]) -> str:
    lines = []
    for test in split.shown[:MOST_TESTS]:
        last = [line.strip() for line in said.get(test, "").splitlines() if line.strip()][-1:]
        note = f": `{last[0][:160].replace('`', chr(39))}`" if last else ""
        lines.append(f"- `{test}`{note}")
    if len(split.shown) > MOST_TESTS:
        lines.append(f"- and {len(split.shown) - MOST_TESTS} more")
    return "These fail now and have to pass:\n\n" + "\n".join(lines)


def _unseen_names(world: Repository[Any], candidate: Candidate, split: Split) -> str:
    """Names that hidden tests need and that nothing visible mentions, as one more sentence."""
    gone = {piece.name.rpartition(".")[2] for piece in candidate.pieces if piece.gone}
    told = candidate.pieces[:FEW] if candidate.origin == "deletion" else ()
    named = {piece.name.rpartition(".")[2] for piece in told}
    needed = gone & world.mentioned(split.held_out)
    missing = sorted(needed - world.mentioned(split.shown) - named)
    return f" (also {', '.join(missing)})" if missing else ""


def _short_names(pieces: Sequence[RemovedCode]) -> list[str]:
    return [piece.name for piece in pieces[:MOST_NAMES]]


def _missing(pieces: Sequence[RemovedCode]) -> str:
    names = [f"`{piece.name}`" for piece in pieces[:MOST_NAMES]]
    more = f" and {len(pieces) - MOST_NAMES} more" if len(pieces) > MOST_NAMES else ""
    gone = sum(piece.gone for piece in pieces)
    are = "are" if len(pieces) > 1 else "is"
    how = "gone" if gone == len(pieces) else "not implemented" if not gone else "gone or not implemented"
    return f"{', '.join(names)}{more} {are} {how}"


def _quoted(tests: Sequence[str]) -> str:
    places = list(dict.fromkeys(test.partition("[")[0] for test in tests))
    names = [f"`{name}`" for name in places[:3]]
    more = len(places) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def sloppy(text: str, rng: random.Random, names: Collection[str] = ()) -> str:
    """With a slip of the keyboard in one ordinary word, now and then; never in a name."""
    found = re.finditer(r"(?<![\w{`./])[a-z]{5,}(?![\w}`./(])", text)
    words = [word for word in found if word[0] not in names]
    if not words or rng.random() >= SLOPPY:
        return text
    word = rng.choice(words)
    at = rng.randrange(word.start() + 1, word.end() - 2)
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :]

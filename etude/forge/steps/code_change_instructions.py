"""How somebody is asked for a change of the code: what missing code is called, which tests fail, the specification.

The specification names every symbol that the failing tests take from the project, with signatures and docstrings of
what is missing. Terse and plain name what nobody could find out from what is left. Knows the candidate, its tests'
names and sources, and no answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from etude.forge.languages.base import Repository, outermost
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.hide_tests import Split
from etude.forge.steps.instructions import Instructions, code_block, last_line, quoted_doc, with_typo

MOST_NAMES: Final = 6  # in a sentence
FEW: Final = 3  # in a hurry
MOST_TESTS: Final = 12  # in a list
TERSE: Final = (
    "{names} got lost, put {it} back",
    "need {names} again, tests are red",
    "reimplement {names}",
    "somebody dropped {names}, please restore. tests should pass again",
    "{names} - bring back like before",
)


def missing_code(
    repository: Repository[Any],
    candidate: Candidate,
    split: Split,
    output: Mapping[str, str],
    rng: random.Random,
    *,
    changed: str = "without a body",
    named: int = FEW,
) -> Instructions:
    """Code that is gone is to be written again. `changed` says how that is which has kept its name; the first `named`
    pieces are named in every style."""
    pieces = public_first(candidate.pieces)
    unseen = unseen_names(repository, candidate, split, named)
    shown = pieces[: FEW if len(pieces) > FEW + 1 else FEW + 1]  # "and 1 more" is longer than the name
    names = in_words([piece.name for piece in shown], len(pieces) - len(shown))
    where = f" ({changed_files(candidate)})" if len(pieces) > FEW or rng.random() < 0.6 else ""
    it = "it" if len(pieces) == 1 else "them"
    terse = with_typo(rng.choice(TERSE), rng).format(names=names + where, it=it) + unseen
    lines = [f"{_missing(pieces)}\n"]
    for piece in pieces[:MOST_NAMES]:
        summary = piece.doc.strip().partition("\n\n")[0].replace("\n", " ") if piece.doc else ""
        lines.append(f"- `{piece.name}` in `{piece.path}`{': ' if summary else ''}{' '.join(summary.split())}")
    verb = "pass" if len(places_of_tests(split)) > 1 else "passes"
    so = f" so that {quoted_tests(split)} {verb}" if split.shown else ""
    lines.append(f"\nPlease implement this again{so}, and keep everything else working.{unseen}")
    these = "this name" if len(pieces) == 1 else "these names"
    intro = f"Write {it} again as specified here; callers and tests rely on {these}."
    detailed = specification(repository, candidate, split, output, _missing(pieces), intro, changed)
    return Instructions(kind_of_feature(candidate), terse, "\n".join(lines) + "\n", detailed)


def public_first(pieces: Sequence[RemovedCode]) -> list[RemovedCode]:
    """Pieces in the order in which somebody names them: what users call before what it calls itself."""
    return sorted(
        pieces, key=lambda piece: any(re.match(r"_(?!_)|__.*(?<!__)$", part) for part in piece.name.split("."))
    )


def in_words(names: Sequence[str], more: int = 0) -> str:
    """a; a and b; a, b and c; a, b, c and 2 more."""
    listed = [*names, *([f"{more} more"] if more else [])]
    return " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)


def kind_of_feature(candidate: Candidate) -> str:
    """Whole symbols are a new feature, bodies a feature that is completed."""
    return "new feature" if any(piece.gone for piece in candidate.pieces) else "feature iteration"


def changed_files(candidate: Candidate) -> str:
    return " and ".join(sorted(candidate.changes)[:3])


def quoted_files(candidate: Candidate) -> str:
    return ", ".join(f"`{path}`" for path in sorted(candidate.changes)[:MOST_NAMES])


def telling_tests(repository: Repository[Any], candidate: Candidate, split: Split) -> list[str]:
    """The tests that are shown, those first that run what is wrong and little else: they say most about it."""
    pieces = {piece.id for piece in candidate.pieces}

    def foreign(test: str) -> tuple[bool, int]:
        reached = {outermost(name) for name in repository.traces.get(test, ())}
        return not pieces & reached, len(reached)

    return sorted(split.shown, key=foreign)


def titles_of_tests(repository: Repository[Any], candidate: Candidate, split: Split) -> list[str]:
    """What somebody in a hurry calls one or two of them."""
    return list(dict.fromkeys(map(repository.title, telling_tests(repository, candidate, split))))[:2]


def places_of_tests(split: Split) -> list[str]:
    """The test functions that are shown, each once, whatever their parameters."""
    return list(dict.fromkeys(test.partition("[")[0] for test in split.shown))


def quoted_tests(split: Split) -> str:
    places = places_of_tests(split)
    names = [f"`{name}`" for name in places[: 3 if len(places) > 4 else 4]]
    return in_words(names, len(places) - len(names))


def unseen_names(repository: Repository[Any], candidate: Candidate, split: Split, named: int = 0) -> str:
    """Names that hidden tests need and that nothing visible mentions, as one more sentence."""
    gone = {piece.name.rpartition(".")[2] for piece in candidate.pieces if piece.gone}
    already = {piece.name.rpartition(".")[2] for piece in public_first(candidate.pieces)[:named]}
    needed = gone & repository.mentioned(split.held_out)
    missing = sorted(needed - repository.mentioned(split.shown) - already)
    return f" (also {', '.join(missing)})" if missing else ""


def specification(
    repository: Repository[Any],
    candidate: Candidate,
    split: Split,
    output: Mapping[str, str],
    title: str,
    intro: str,
    changed: str = "changed",
) -> str:
    """What is missing or wrong, file by file, and the tests that have to pass with what they said (`output`)."""
    pieces, fence = candidate.pieces, repository.task_files.fence
    parts = [f"# {title.rstrip('.')}", intro, "## Where"]
    for path in sorted({piece.path for piece in pieces}):
        parts.append(f"### `{path}`")
        parts += [_piece(piece, changed, fence) for piece in pieces if piece.path == path]
    used = repository.used_names([*split.shown, *split.held_out])
    if used:
        parts += ["## What the tests use", "\n".join(f"- {line}" for line in used)]
    parts += ["## Tests", _tests(split, output)] if split.shown else []
    parts.append("Tests that are not in the repository check the same behaviour with other cases.")
    return "\n\n".join(parts) + "\n"


def _piece(piece: RemovedCode, changed: str, fence: str) -> str:
    state = "missing" if piece.gone else changed
    owner = piece.name.rpartition(".")[0]
    head = f"`{piece.name}` ({state}{f', in class `{owner}`' if owner else ''}):\n\n"
    return head + code_block(piece.signature, fence) + quoted_doc(piece.doc)


def _tests(split: Split, output: Mapping[str, str]) -> str:
    """A line for each test function: its parameters say little, and may be many."""
    cases: dict[str, list[str]] = {}
    for test in split.shown:
        cases.setdefault(test.partition("[")[0], []).append(test)
    lines = []
    for place, tests in list(cases.items())[:MOST_TESTS]:
        last = next((found for test in tests if (found := last_line(output.get(test, "")))), "")
        count = f" ({len(tests)} cases)" if len(tests) > 1 else ""
        lines.append(f"- `{place}`{count}" + (f": `{last}`" if last else ""))
    if len(cases) > MOST_TESTS:
        lines.append(f"- and {len(cases) - MOST_TESTS} more")
    fail = "This fails now and has to pass" if len(cases) == 1 else "These fail now and have to pass"
    return f"{fail}:\n\n" + "\n".join(lines)


def _missing(pieces: Sequence[RemovedCode]) -> str:
    names = in_words([f"`{piece.name}`" for piece in pieces[:MOST_NAMES]], max(0, len(pieces) - MOST_NAMES))
    gone = sum(piece.gone for piece in pieces)
    are = "are" if len(pieces) > 1 else "is"
    how = "gone" if gone == len(pieces) else "not implemented" if not gone else "gone or not implemented"
    return f"{names} {are} {how}"

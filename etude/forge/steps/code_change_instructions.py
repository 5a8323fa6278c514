"""How somebody is asked for a change of the code: what missing code is called, which tests fail, the specification.

The specification names every symbol that the failing tests take from the project, with signatures and docstrings of
what is missing. Terse and plain name what nobody could find out from what is left. Knows the candidate, its tests'
names and sources, and no answer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from etude.forge.languages.base import Repository
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.hide_tests import Split
from etude.forge.steps.instructions import Instructions, code_block, last_line, quoted_doc, with_typo

MOST_NAMES: Final = 6  # in a sentence
FEW: Final = 3  # in a hurry
MOST_TESTS: Final = 12  # in a list
TERSE: Final = (
    "{names} got lost, put it back",
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
    pieces = candidate.pieces
    unseen = unseen_names(repository, candidate, split, named)
    names = ", ".join([piece.name for piece in pieces[:MOST_NAMES]][:FEW])
    many = len(pieces) > FEW
    names += f" and {len(pieces) - FEW} more" if many else ""
    where = f" ({changed_files(candidate)})" if many or rng.random() < 0.6 else ""
    terse = with_typo(rng.choice(TERSE), rng).format(names=names + where) + unseen
    lines = [f"{_missing(pieces)}\n"]
    for piece in pieces[:MOST_NAMES]:
        summary = piece.doc.strip().partition("\n\n")[0].replace("\n", " ") if piece.doc else ""
        lines.append(f"- `{piece.name}` in `{piece.path}`{': ' if summary else ''}{' '.join(summary.split())}")
    verb = "pass" if len(split.shown) > 1 else "passes"
    lines.append(
        f"\nPlease implement this again so that {quoted_tests(split)} {verb}, and keep everything else working.{unseen}"
    )
    intro = "Write it again as specified here; callers and tests rely on these names."
    detailed = specification(repository, candidate, split, output, _missing(pieces), intro, changed)
    return Instructions(kind_of_feature(candidate), terse, "\n".join(lines) + "\n", detailed)


def kind_of_feature(candidate: Candidate) -> str:
    """Whole symbols are a new feature, bodies a feature that is completed."""
    return "new feature" if any(piece.gone for piece in candidate.pieces) else "feature iteration"


def changed_files(candidate: Candidate) -> str:
    return " and ".join(sorted(candidate.changes)[:3])


def quoted_files(candidate: Candidate) -> str:
    return ", ".join(f"`{path}`" for path in sorted(candidate.changes)[:MOST_NAMES])


def titles_of_tests(repository: Repository[Any], split: Split) -> str:
    return " and ".join(dict.fromkeys(map(repository.title, split.shown[:2])))


def quoted_tests(split: Split) -> str:
    places = list(dict.fromkeys(test.partition("[")[0] for test in split.shown))
    names = [f"`{name}`" for name in places[:3]]
    more = len(places) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def unseen_names(repository: Repository[Any], candidate: Candidate, split: Split, named: int = 0) -> str:
    """Names that hidden tests need and that nothing visible mentions, as one more sentence."""
    gone = {piece.name.rpartition(".")[2] for piece in candidate.pieces if piece.gone}
    already = {piece.name.rpartition(".")[2] for piece in candidate.pieces[:named]}
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
    parts += ["## Tests", _tests(split, output)]
    parts.append("Tests that are not in the repository check the same behaviour with other cases.")
    return "\n\n".join(parts) + "\n"


def _piece(piece: RemovedCode, changed: str, fence: str) -> str:
    state = "missing" if piece.gone else changed
    owner = piece.name.rpartition(".")[0]
    head = f"`{piece.name}` ({state}{f', in class `{owner}`' if owner else ''}):\n\n"
    return head + code_block(piece.signature, fence) + quoted_doc(piece.doc)


def _tests(split: Split, output: Mapping[str, str]) -> str:
    lines = []
    for test in split.shown[:MOST_TESTS]:
        last = last_line(output.get(test, ""))
        lines.append(f"- `{test}`" + (f": `{last}`" if last else ""))
    if len(split.shown) > MOST_TESTS:
        lines.append(f"- and {len(split.shown) - MOST_TESTS} more")
    return "These fail now and have to pass:\n\n" + "\n".join(lines)


def _missing(pieces: Sequence[RemovedCode]) -> str:
    names = [f"`{piece.name}`" for piece in pieces[:MOST_NAMES]]
    more = f" and {len(pieces) - MOST_NAMES} more" if len(pieces) > MOST_NAMES else ""
    gone = sum(piece.gone for piece in pieces)
    are = "are" if len(pieces) > 1 else "is"
    how = "gone" if gone == len(pieces) else "not implemented" if not gone else "gone or not implemented"
    return f"{', '.join(names)}{more} {are} {how}"

"""How somebody is asked for a change of the code: what missing code is called, which tests fail, the specification.

An issue says what happened, what is wanted, and how one sees that it is done. The specification has signatures and
docstrings of what is missing, and every symbol that the failing tests take from the project. Terse and plain name what
nobody could find out from what is left. Knows the candidate, its tests' names and sources, and no answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from etude.forge.languages.base import Repository, outermost
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.hide_tests import Split
from etude.forge.steps.instructions import Instructions, code_block, last_line, quoted_doc, with_typo

State = Literal["gone", "stub", "mixed", "reverted"]
MOST_NAMES: Final = 6  # in a sentence
FEW: Final = 3  # in a hurry
MOST_TESTS: Final = 12  # in a list
# What happened, as somebody would tell it; verbs and pronouns agree with the number of names.
HURRY: Final[dict[State, tuple[str, ...]]] = {
    "stub": (
        "{names} {is} just a stub right now, can you fill {it} in?",
        "can you implement {names}? only the {signature} left",
        "{names} still {needs} an implementation, tests for {it} fail",
        "pls finish {names}, {it_was} left empty in the last refactoring",
    ),
    "gone": (
        "{names} got deleted by accident, can you write {it} again?",
        "we still need {names}, {it_was} removed in the cleanup. please bring {it} back",
        "can you add {names} back? tests fail without {it}",
        "{names} went missing in a merge, please reimplement",
    ),
    "reverted": (
        "our last change to {names} got reverted by accident, can you redo it?",
        "{names} {is} back to an old version, tests fail. can you make the change again",
    ),
    "mixed": (
        "the merge lost some code: {names}. can you write {it} again?",
        "{names}: some are gone, some only stubs. please implement them again",
        "can you restore {names}? the last refactoring threw them out or left stubs",
    ),
}
OPENINGS: Final[dict[State, tuple[str, ...]]] = {
    "stub": (
        "{names} in {files} {is} only a stub at the moment: the {signature} there, the code is not.",
        "I emptied {names} in {files} while moving things around and never wrote {it} again.",
        "After the last refactoring of {files}, {names} {is} left without an implementation.",
        "Could you implement {names} in {files}? Only the {signature} left.",
    ),
    "gone": (
        "{names} fell out of {files} in the last cleanup, but {it_is} still needed.",
        "When we merged the last branch, {names} got lost from {files}.",
        "Somebody removed {names} from {files}. We took {it} for dead code, which was wrong.",
        "We need {names} in {files} again; {it_was} deleted by mistake.",
    ),
    "reverted": (
        "A bad merge took our last change to {names} in {files} back, and it has to be made again.",
        "{names} in {files} {is} back to an older version since the last rebase.",
    ),
    "mixed": (
        "The last merge damaged {files}: {names} are gone, or only their signatures are left.",
        "Part of {files} got lost when we cleaned up. {names} have to be written again; some of them are still there "
        "as stubs.",
    ),
}
TESTED: Final = (
    "{tests} {fail} because of that and should pass again.",
    "It shows in {tests}, which {fail} now.",
    "It is done when {tests} {succeed} again.",
)
CLOSINGS: Final = (
    "Everything else should keep working as it does.",
    "Please leave the rest of the behaviour alone.",
    "Nothing else should change.",
)
MORE_CASES: Final = "CI runs more cases of the same behaviour than the repository has."


def missing_code(
    repository: Repository[Any],
    candidate: Candidate,
    split: Split,
    output: Mapping[str, str],
    rng: random.Random,
    *,
    reverted: bool = False,
    named: int = FEW,
) -> Instructions:
    """Code that is gone is to be written again, or a change that was taken back to be made again (`reverted`). The
    first `named` pieces are named in every style."""
    pieces = public_first(candidate.pieces)
    state: State = "reverted" if reverted else _state(pieces)
    unseen = unseen_names(repository, candidate, split, named)
    shown = pieces[: FEW if len(pieces) > FEW + 1 else FEW + 1]  # "and 1 more" is longer than the name
    names = in_words([piece.name for piece in shown], len(pieces) - len(shown))
    where = f" ({changed_files(candidate)})" if len(pieces) > FEW or rng.random() < 0.6 else ""
    terse = with_typo(rng.choice(HURRY[state]), rng).format(names=names + where, **_agreeing(pieces)) + unseen
    opening = rng.choice(OPENINGS[state]).format(
        names=_quoted_names(pieces), files=quoted_files(candidate), **_agreeing(pieces)
    )
    done = " ".join([*_tested(split, rng), rng.choice(CLOSINGS)])
    plain = "\n\n".join([opening, *_purposes(pieces), done + unseen]) + "\n"
    title = {"stub": "Implement {}", "reverted": "Redo the change of {}"}.get(state, "Bring back {}")
    present = "is an older version" if reverted else "is still there as a stub"
    detailed = specification(
        repository, candidate, split, output, title.format(_quoted_names(pieces)), opening, present
    )
    return Instructions(kind_of_feature(candidate), terse, plain, detailed)


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
    paths = sorted(candidate.changes)
    return in_words([f"`{path}`" for path in paths[:MOST_NAMES]], max(0, len(paths) - MOST_NAMES))


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
    """Some of them in a sentence, each file named once: `test_a` and `test_b` in `tests/test_shop.py`."""
    places = places_of_tests(split)
    files: dict[str, list[str]] = {}
    for place in places[: 3 if len(places) > 4 else 4]:
        path, _, name = place.partition("::")
        files.setdefault(path, []).extend([f"`{name}`"] if name else [])
    said = [f"{in_words(names)} in `{path}`" if names else f"`{path}`" for path, names in files.items()]
    more = len(places) - 3 if len(places) > 4 else 0
    return in_words(said, more) if len(said) < 2 or more else ", and ".join([", ".join(said[:-1]), said[-1]])


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
    present: str = "has to be changed",
) -> str:
    """What is missing or wrong, file by file, and the tests that have to pass with what they said (`output`).
    `present` is told of what is not gone, where something else is."""
    pieces, fence = candidate.pieces, repository.task_files.fence
    parts = [f"# {title.rstrip('.')}", intro]
    told = present if _state(pieces) == "mixed" else ""
    for path in sorted({piece.path for piece in pieces}):
        own = [piece for piece in pieces if piece.path == path]
        blocks = [_piece(piece, told, fence) for piece in own]
        parts += [f"In `{path}`, {blocks[0]}"] if len(own) == 1 else [f"In `{path}`:", *blocks]
    parts += [_tests(split, output)] if split.shown else []
    used = repository.used_names([*split.shown, *split.held_out])
    if len(used) == 1:
        parts.append(f"What the tests import {used[0]}. These names should stay where they are.")
    elif used:
        imported = "\n".join(f"- {line}" for line in used)
        parts.append(f"The tests import these names, which should stay where they are:\n\n{imported}")
    parts.append(MORE_CASES)
    return "\n\n".join(parts) + "\n"


def _piece(piece: RemovedCode, present: str, fence: str) -> str:
    """Its signature and docstring. With `present`, also whether it is gone."""
    state = f" {'is missing' if piece.gone else present}" if present else ""
    return f"`{piece.name}`{state}:\n\n" + code_block(piece.signature, fence) + quoted_doc(piece.doc)


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
    fail = "This test fails now and should pass" if len(cases) == 1 else "These tests fail now and should pass"
    return f"{fail}:\n\n" + "\n".join(lines)


def _state(pieces: Sequence[RemovedCode]) -> State:
    gone = sum(piece.gone for piece in pieces)
    return "stub" if not gone else "gone" if gone == len(pieces) else "mixed"


def _agreeing(pieces: Sequence[RemovedCode]) -> dict[str, str]:
    """Words that agree with how many there are."""
    if len(pieces) == 1:
        words = ("is", "it", "it was", "it is", "signature is", "needs")
    else:
        words = ("are", "them", "they were", "they are", "signatures are", "need")
    return dict(zip(("is", "it", "it_was", "it_is", "signature", "needs"), words, strict=True))


def _quoted_names(pieces: Sequence[RemovedCode]) -> str:
    return in_words([f"`{piece.name}`" for piece in pieces[:MOST_NAMES]], max(0, len(pieces) - MOST_NAMES))


def _purposes(pieces: Sequence[RemovedCode]) -> list[str]:
    """What each is for by its docstring, and where it belongs where that is not one place: a sentence or a list."""
    several = len({piece.path for piece in pieces}) > 1
    summaries = {piece.id: " ".join(piece.doc.strip().partition("\n\n")[0].split()) for piece in pieces}
    if len(pieces) == 1:
        return [f'Its docstring says what it does: "{text}"' for text in summaries.values() if text]
    lines = []
    for piece in pieces[:MOST_NAMES]:
        where, text = f" in `{piece.path}`" if several else "", summaries[piece.id]
        lines += [f"- `{piece.name}`{where}{': ' if text else ''}{text}"] if where or text else []
    head = "What they do, by their docstrings:" if any(summaries.values()) else "Where they belong:"
    return [f"{head}\n\n" + "\n".join(lines)] if lines else []


def _tested(split: Split, rng: random.Random) -> list[str]:
    """How one sees that it is done."""
    if not split.shown:
        return []
    fail, succeed = ("fails", "passes") if len(places_of_tests(split)) == 1 else ("fail", "pass")
    return [rng.choice(TESTED).format(tests=quoted_tests(split), fail=fail, succeed=succeed)]

"""Questions about a repository that have one right answer, and no edit as their outcome.

    review           a patch is harmless in all functions but one: which does it break? (`reviews`)
    reach            which of these functions does a test run?
    implementation   several functions have the same name: which of them does a test run?
    raises           a test expects an exception: which function raises it?
    plan             tests fail for several reasons: which functions have to be changed? (`plans`)

Proposed from traces and code, in an order that follows from repository and seed; that the answer is right, and the only
one, is found by execution (`prove`). Answers are functions, as path:name. Runs nothing.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from typing import Final

from etude.forge.languages.base import outermost
from etude.forge.languages.edits import Edit
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import PLUMBING, Definition
from etude.forge.origins.question.candidate import Question
from etude.forge.origins.question.propose_plan import plans
from etude.forge.origins.question.propose_review import reviews
from etude.forge.steps.candidate import RemovedCode
from etude.forge.steps.choose_functions import Links
from etude.forge.steps.round_robin import in_turns
from etude.tasks.format.config import AnswerKind

CHOICES: Final = 8  # functions that are asked about
RIGHT: Final = (2, 5)  # of them, that the test runs
NAMESAKES: Final = 3  # functions of one name, from which on it is a question which
RAISING: Final = 2  # functions on a test's way that could raise something
MOST_RAISING: Final = 40


def questions(repository: PythonRepository, rng: random.Random) -> Iterator[Question]:
    """The kinds in turns, as long as each has some."""
    links = Links(repository)
    seeds = [random.Random(rng.random()) for _ in range(5)]
    streams = (
        reviews(repository, links, seeds[0]),
        reaches(repository, seeds[1]),
        implementations(repository, seeds[2]),
        raising(repository, seeds[3]),
        plans(repository, links, seeds[4]),
    )
    return in_turns(streams)


def reaches(repository: PythonRepository, rng: random.Random) -> Iterator[Question]:
    """Functions of the files that a test comes through, those that it runs among others that it does not."""
    known = [each for each in repository.definitions.values() if _is_clear(repository, each)]
    for test in _tests(repository, rng):
        run = [each for each in known if each.id in repository.traces[test]]
        files = {each.path for each in run}
        touched = {outermost(name) for name in repository.traces[test]}
        idle = [each for each in known if each.path in files and each.id not in touched]
        right = rng.randint(*RIGHT)
        if len(run) >= right + 1 and len(idle) >= CHOICES - right:
            chosen = rng.sample(run, right)
            names = tuple(sorted(each.id for each in [*chosen, *rng.sample(idle, CHOICES - right)]))
            yield _about(repository, "reach", test, chosen, names)


def implementations(repository: PythonRepository, rng: random.Random) -> Iterator[Question]:
    """A name that several functions have, of which a test runs one."""
    by_name: dict[str, list[Definition]] = {}
    for each in repository.definitions.values():
        if not isinstance(each.node, ast.ClassDef):
            by_name.setdefault(each.short, []).append(each)
    shared = {
        name: found
        for name, found in by_name.items()
        if len(found) >= NAMESAKES and name not in PLUMBING and not any(each.id in repository.early for each in found)
    }
    known_answers: set[tuple[str, str]] = set()  # a name and the answer: one question each
    for test in _tests(repository, rng):
        touched = {outermost(name) for name in repository.traces[test]}
        for name in rng.sample(sorted(shared), len(shared)):
            run = [each for each in shared[name] if each.id in touched]
            is_one = len(run) == 1 and _is_clear(repository, run[0]) and run[0].id in repository.traces[test]
            if is_one and (name, run[0].id) not in known_answers:
                known_answers.add((name, run[0].id))
                yield _about(repository, "implementation", test, run, tuple(sorted(each.id for each in shared[name])))
                break


def raising(repository: PythonRepository, rng: random.Random) -> Iterator[Question]:
    """Tests that expect an exception, with the functions on their way that have a `raise`. Who it is, a trial tells."""
    for test in _tests(repository, rng):
        place = repository.place(test)
        module = repository.tests.get(place.path)
        written = module.definitions.get(place.name) if module is not None else None
        if written is None or not {"raises", "assertRaises", "assertRaisesRegex"} & written.uses:
            continue
        ways = [
            repository.definitions[name] for name in sorted(repository.traces[test]) if name in repository.definitions
        ]
        able = [each for each in ways if _raises(each) and not each.repeated]
        if RAISING <= len(able) <= MOST_RAISING:
            yield _about(repository, "raises", test, able, tuple(each.id for each in able))


def raising_otherwise(repository: PythonRepository, definition: Definition) -> bytes:
    """The file with every `raise` of a function raising something that nobody expects."""
    module = repository.modules[definition.path]
    edits = [Edit(*module.span(node), b"raise KeyboardInterrupt('etude')") for node in _raises(definition)]
    return module.edited(edits)


def _raises(definition: Definition) -> list[ast.Raise]:
    if isinstance(definition.node, ast.ClassDef):
        return []
    inside = [node for statement in definition.code for node in ast.walk(statement)]
    return [node for node in inside if isinstance(node, ast.Raise) and node.exc is not None]


def _about(
    repository: PythonRepository, how: str, test: str, right: Sequence[Definition], choices: tuple[str, ...]
) -> Question:
    kind: AnswerKind = "names" if how == "reach" else "name"
    names = tuple(sorted(each.id for each in right))
    pieces = tuple(RemovedCode.of(repository, each) for each in right)
    lines = sum(repository.definitions[name].size for name in choices)
    expected = frozenset([test])
    return Question(
        "question", how, {}, pieces, expected, lines=lines, kind=kind, accepted=names, choices=choices, test=test
    )


def _tests(repository: PythonRepository, rng: random.Random) -> Iterator[str]:
    """One test of each function, those of the same parameters being much alike; inherited ones are hard to name."""
    found = [ids[0] for place, ids in repository.places.items() if place.name and "[" not in ids[0]]
    yield from rng.sample(found, len(found))


def _is_clear(repository: PythonRepository, each: Definition) -> bool:
    """Whether it can be said of a test that it runs this function: not while it is imported, not twice in its file."""
    return each.deletable and each.id not in repository.early and not each.short.startswith("__")

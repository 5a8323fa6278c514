"""Questions about a repository that have one right answer, and no edit as their outcome.

    review           a patch is harmless in all functions but one: which does it break? (`reviews`)
    reach            which of these functions does a test run?
    implementation   several functions have the same name: which of them does a test run?
    raises           a test expects an exception: which function raises it?
    plan             tests fail for several reasons: which functions have to be changed? (`plans`)

Proposed from traces and code, in an order that follows from repository and seed; that the answer is right, and the only
one, is for `ask` to find out by execution. Answers are functions, as path:name. Runs nothing.
"""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Final

from etude.forge.languages.base import outermost
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import PLUMBING, Definition, Edit, Module
from etude.forge.origins.question.plans import plans
from etude.forge.origins.question.reviews import reviews
from etude.forge.steps.candidate import Question, RemovedCode
from etude.forge.steps.choose_functions import Links
from etude.tasks.format.config import AnswerKind

KINDS: Final = ("review", "reach", "implementation", "raises", "plan")
CHOICES: Final = 8  # functions that are asked about
RIGHT: Final = (2, 5)  # of them, that the test runs
NAMESAKES: Final = 3  # functions of one name, from which on it is a question which
RAISING: Final = 2  # functions on a test's way that could raise something
MOST_RAISING: Final = 40


def questions(world: PythonRepository, rng: random.Random) -> Iterator[Question]:
    """The kinds in turns, as long as each has some."""
    links = Links(world)
    seeds = {kind: random.Random(rng.random()) for kind in KINDS}
    streams: dict[str, Iterator[Question]] = {
        "review": reviews(world, links, seeds["review"]),
        "reach": reaches(world, seeds["reach"]),
        "implementation": implementations(world, seeds["implementation"]),
        "raises": raising(world, seeds["raises"]),
        "plan": plans(world, links, seeds["plan"]),
    }
    for kind in itertools.cycle(KINDS):
        if not streams:
            return
        if kind in streams:
            found = next(streams[kind], None)
            if found is None:
                del streams[kind]
            else:
                yield found


def reaches(world: PythonRepository, rng: random.Random) -> Iterator[Question]:
    """Functions of the files that a test comes through, those that it runs among others that it does not."""
    known = [each for each in world.definitions.values() if _is_clear(world, each)]
    for test in _tests(world, rng):
        run = [each for each in known if each.id in world.traces[test]]
        files = {each.path for each in run}
        touched = {outermost(name) for name in world.traces[test]}
        idle = [each for each in known if each.path in files and each.id not in touched]
        right = rng.randint(*RIGHT)
        if len(run) >= right + 1 and len(idle) >= CHOICES - right:
            chosen = rng.sample(run, right)
            names = tuple(sorted(each.id for each in [*chosen, *rng.sample(idle, CHOICES - right)]))
            yield _about(world, "reach", test, chosen, names)


def implementations(world: PythonRepository, rng: random.Random) -> Iterator[Question]:
    """A name that several functions have, of which a test runs one."""
    by_name: dict[str, list[Definition]] = {}
    for each in world.definitions.values():
        if not isinstance(each.node, ast.ClassDef):
            by_name.setdefault(each.short, []).append(each)
    shared = {
        name: found
        for name, found in by_name.items()
        if len(found) >= NAMESAKES and name not in PLUMBING and not any(each.id in world.early for each in found)
    }
    asked: set[tuple[str, str]] = set()  # a name and the answer: one question each
    for test in _tests(world, rng):
        touched = {outermost(name) for name in world.traces[test]}
        for name in rng.sample(sorted(shared), len(shared)):
            run = [each for each in shared[name] if each.id in touched]
            is_one = len(run) == 1 and _is_clear(world, run[0]) and run[0].id in world.traces[test]
            if is_one and (name, run[0].id) not in asked:
                asked.add((name, run[0].id))
                yield _about(world, "implementation", test, run, tuple(sorted(each.id for each in shared[name])))
                break


def raising(world: PythonRepository, rng: random.Random) -> Iterator[Question]:
    """Tests that expect an exception, with the functions on their way that have a `raise`. Who it is, a trial tells."""
    for test in _tests(world, rng):
        place = world.place(test)
        module = world.tests.get(place.path)
        written = module.definitions.get(place.name) if module is not None else None
        if written is None or not {"raises", "assertRaises", "assertRaisesRegex"} & written.uses:
            continue
        ways = [world.definitions[name] for name in sorted(world.traces[test]) if name in world.definitions]
        able = [each for each in ways if _raises(each) and not each.repeated]
        if RAISING <= len(able) <= MOST_RAISING:
            yield _about(world, "raises", test, able, tuple(each.id for each in able))


def otherwise(world: PythonRepository, definition: Definition) -> bytes:
    """The file with every `raise` of a function raising something that nobody expects."""
    module = world.modules[definition.path]
    edits = [Edit(*module.span(node), b"raise KeyboardInterrupt('etude')") for node in _raises(definition)]
    return module.edited(edits)


def _raises(definition: Definition) -> list[ast.Raise]:
    if isinstance(definition.node, ast.ClassDef):
        return []
    inside = [node for statement in definition.code for node in ast.walk(statement)]
    return [node for node in inside if isinstance(node, ast.Raise) and node.exc is not None]


def _about(
    world: PythonRepository, how: str, test: str, right: Sequence[Definition], choices: tuple[str, ...]
) -> Question:
    kind: AnswerKind = "names" if how == "reach" else "name"
    names = tuple(sorted(each.id for each in right))
    pieces = tuple(_piece(world.modules[each.path], each) for each in right)
    lines = sum(world.definitions[name].size for name in choices)
    expected = frozenset([test])
    return Question("question", how, {}, pieces, expected, "", lines, kind, names, choices, test)


def _tests(world: PythonRepository, rng: random.Random) -> Iterator[str]:
    """One test of each function, those of the same parameters being much alike; inherited ones are hard to name."""
    found = [ids[0] for place, ids in world.places.items() if place.name and "[" not in ids[0]]
    yield from rng.sample(found, len(found))


def _is_clear(world: PythonRepository, each: Definition) -> bool:
    """Whether it can be said of a test that it runs this function: not while it is imported, not twice in its file."""
    return each.deletable and each.id not in world.early and not each.short.startswith("__")


def _piece(module: Module, each: Definition) -> RemovedCode:
    return RemovedCode(each.path, each.name, module.source(each), each.signature, each.doc, each.size)

"""What a plan has to hold, found by execution: bugs that tests notice one by one, and that nothing else could mend.

Several mistakes of each function are tried alone, and the one is kept that most tests notice, within reason: the more
there are, the less they have in common but the function. Every test that fails for it has to run the function, and no
other function that all of them run may be one to blame. Then with any of the kept bugs left, tests still fail; so all
functions are needed, and no two bugs cancel out. What somebody would name who does not look closely must be
wrong. Knows one candidate.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, zip_longest
from typing import Final

from etude.forge.languages.base import Mutation, outermost
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Definition
from etude.forge.origins.question.candidate import Question
from etude.forge.origins.question.propose_plan import could_be_blamed
from etude.forge.origins.question.propose_review import BLUNT
from etude.forge.steps.choose_functions import MOST_SHARE
from etude.forge.steps.context import MakeContext, Refused
from etude.forge.steps.killed_mutants import combined
from etude.forge.steps.trial import failing

TRIED: Final = 4  # mistakes of each function
SECONDS: Final = 60.0  # of tests that all of them together may take
MOST_FAILING: Final = 40  # tests that one of them may break: more say little about where it is


@dataclass(frozen=True)
class _Bug:
    """A mistake and what it does by itself."""

    mistake: Mutation[Definition]
    tests: tuple[str, ...]  # that fail
    texts: Mapping[str, str]  # what they say
    traces: Mapping[str, Collection[str]]  # the functions that each of them runs


async def prove_plan(context: MakeContext, question: Question) -> Question:
    """The question with its bugs and failing tests, or `Refused`."""
    bugs = await _bugs(context, question)
    traces = {test: names for bug in bugs for test, names in bug.traces.items()}
    guesses = _guesses(context.python, question.accepted, traces)
    if _joined(question.accepted) in guesses:  # known without a run, and why most plans are refused
        raise Refused("a guess is right", _joined(question.accepted))
    whole = _changes(context.python, [bug.mistake for bug in bugs])
    broken = await failing(context, whole, question.expected)
    if stray := [test for test in broken if test not in question.expected]:
        raise Refused("another test fails", ", ".join(stray[:3]))
    if len(broken) > MOST_SHARE * len(context.repository.green):
        raise Refused("too many tests fail", str(len(broken)))
    await _need_all(context, bugs, broken)
    texts = {test: text for bug in bugs for test, text in bug.texts.items()}
    turns = zip_longest(*(bug.tests for bug in bugs))
    order = dict.fromkeys([*(test for turn in turns for test in turn if test in broken), *broken])
    lines = sum(context.python.definitions[name].size for name in set().union(*traces.values()))
    output = {test: texts.get(test, "") for test in order}
    return replace(question, changes=whole, output=output, guesses=guesses, lines=lines)


async def _bugs(context: MakeContext, question: Question) -> list[_Bug]:
    """One of each function: by itself it is noticed, and nothing else could be blamed for it."""
    repository = context.python
    rng = random.Random(f"{context.request.seed}/{question.key}/bugs")
    tests = [test for test in repository.green if test in question.expected and test not in context.unsteady]
    took = sum(repository.took.get(test, 0.0) for test in tests) + 0.1
    most = max(1, min(TRIED, int(SECONDS / took / len(question.accepted))))
    tried: list[tuple[str, Mutation[Definition]]] = []
    for name in question.accepted:
        pool = repository.mistakes(repository.definitions[name])
        subtle = sorted(rng.sample(pool, len(pool)), key=lambda one: one.kind in BLUNT)
        tried += [(name, one) for one in subtle if combined(repository, [one]) is not None][:most]
    runs = await context.run_variants(
        [{}, *(_changes(repository, [one]) for _, one in tried)], tests, until_failure=False
    )
    if red := [test for test in tests if test not in runs[0].passed]:
        context.unsteady.update(red)
        raise Refused("a test is not always green", ", ".join(red[:3]))
    kept: dict[str, tuple[Mutation[Definition], list[str]]] = {}
    for (name, one), run in zip(tried, runs[1:], strict=True):
        failed = [test for test in tests if test not in run.passed]
        known = len(kept[name][1]) if name in kept else 0
        if run.complete and known < len(failed) <= MOST_FAILING:
            kept[name] = one, failed
    if lost := [name for name in question.accepted if name not in kept]:
        raise Refused("no test notices, or too many", lost[0])
    return await _traced(context, [kept[name] for name in question.accepted])


async def _traced(context: MakeContext, kept: Sequence[tuple[Mutation[Definition], Sequence[str]]]) -> list[_Bug]:
    """The same with what the failing tests of each say and run."""
    repository = context.python
    tests = list(dict.fromkeys(test for _, failed in kept for test in failed))
    variants = [_changes(repository, [one]) for one, _ in kept]
    runs = await context.run_variants(variants, tests, trace=("",), until_failure=False)
    bugs = []
    for (one, failed), run in zip(kept, runs, strict=True):
        if not run.complete or run.passed.intersection(failed):
            raise Refused("a test is not always green", ", ".join(sorted(run.passed.intersection(failed))[:3]))
        traces = {
            test: set(map(outermost, run.traces.get(test, ()))) & repository.definitions.keys() for test in failed
        }
        _refuse_others(repository, one.definition.id, traces)
        bugs.append(_Bug(one, tuple(failed), run.texts, traces))
    return bugs


def _refuse_others(repository: PythonRepository, name: str, traces: Mapping[str, Collection[str]]) -> None:
    everywhere = set(repository.definitions).intersection(*traces.values())
    if name not in everywhere:
        raise Refused("the trace is not always the same", name)
    rivals = [
        other
        for other in sorted(everywhere - {name})
        if could_be_blamed(repository, repository.definitions[name], other)
    ]
    if rivals:
        raise Refused("another function could be blamed", f"{name}: {', '.join(rivals[:3])}")


async def _need_all(context: MakeContext, bugs: Sequence[_Bug], broken: Sequence[str]) -> None:
    """With some of the bugs mended and others not, some of the tests that fail with all of them still fail."""
    parts = [part for size in range(1, len(bugs)) for part in combinations(bugs, size)]
    variants = [_changes(context.python, [bug.mistake for bug in part]) for part in parts]
    runs = await context.run_variants(variants, broken, until_failure=False)
    for part, run in zip(parts, runs, strict=True):
        if not run.complete:
            raise Refused("the suite does not come to its end")
        if not set(broken) - run.passed:
            raise Refused("bugs hide each other", _joined(bug.mistake.definition.id for bug in part))


def _changes(repository: PythonRepository, mistakes: Sequence[Mutation[Definition]]) -> Mapping[str, bytes | None]:
    changes = combined(repository, mistakes)
    if changes is None:
        raise Refused("no Python is left")
    return changes


def _guesses(
    repository: PythonRepository, accepted: Sequence[str], traces: Mapping[str, Collection[str]]
) -> tuple[str, ...]:
    """Everything that the failing tests run, one function of the right ones, those that most of the tests run, those
    that the tests mention, those that they mention most."""
    run = Counter(name for _, names in sorted(traces.items()) for name in sorted(names))
    words: Counter[str] = Counter()
    for place in {repository.place(test) for test in traces}:
        written = repository.tests[place.path].definitions.get(place.name) if place.path in repository.tests else None
        words.update(re.findall(r"\w+", repository.tests[place.path].source(written)) if written is not None else ())
    mentioned = Counter({name: words[repository.definitions[name].short] for name in sorted(run)})
    sets = [
        list(run),
        *([name] for name in accepted),
        [name for name, _ in run.most_common(len(accepted))],
        [name for name, count in mentioned.items() if count],
        [name for name, _ in mentioned.most_common(len(accepted))],
    ]
    return tuple(dict.fromkeys(_joined(names) for names in sets if names))


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))

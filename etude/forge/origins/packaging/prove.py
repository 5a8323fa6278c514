"""Broken packaging proven by building it: what differs from before is what the task asks for, and its tests notice.

The project is built as it was and as it is broken, each in a sandbox without network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

from etude.forge.origins.packaging.distribution import SECONDS, BuildContext, build
from etude.forge.origins.packaging.expectations import Expectation, Facts, expectations, written_tests
from etude.forge.origins.packaging.propose import BrokenPackaging
from etude.forge.steps.choose_functions import LEAST_TESTS
from etude.forge.steps.context import Refused
from etude.forge.steps.proof import Gates, Proof

# Where nothing else that is built is wanted by its parts, so that a project that cannot be built still says what is.
WHOLE: Final = frozenset(("version", "contents", "python", "dependencies"))


@dataclass(frozen=True, kw_only=True)
class PackagingProof(Proof[BrokenPackaging]):
    """What building it showed."""

    expected: list[Expectation]
    now: Facts = field(repr=False)  # about the broken distribution
    tests: bytes = field(repr=False)  # the test file
    failing: list[str]  # ids of its tests that the broken project fails
    passing: list[str]


async def prove(context: BuildContext, candidate: BrokenPackaging) -> PackagingProof:
    expected, now = await _expectations(context, candidate)
    tests = written_tests(expected, context.facts).encode()
    failing, passing = await _run_tests(context, candidate, tests)
    return PackagingProof(
        candidate,
        # Entries of a configuration have no name that code could mention.
        removed=tuple(replace(piece, name="") for piece in candidate.pieces),
        gates=Gates([*context.repository.green, *failing, *passing]),
        expected=expected,
        now=now,
        tests=tests,
        failing=failing,
        passing=passing,
    )


async def _expectations(context: BuildContext, candidate: BrokenPackaging) -> tuple[list[Expectation], Facts]:
    now = await build(context, context.file, candidate.changes)
    if not now["built"] and not WHOLE.issuperset(candidate.areas):
        raise Refused("it cannot be built at all", now["why"])
    expected = expectations(context.facts, now, candidate.areas)
    if not expected:
        raise Refused("no test notices")
    if context.source is not None and any(each.area == "version" for each in expected):
        expected.append(context.source)
    if "version" in candidate.areas and not any(each.area == "version" for each in expected):
        raise Refused("no test notices", "the version")
    return expected, now


async def _run_tests(context: BuildContext, candidate: BrokenPackaging, text: bytes) -> tuple[list[str], list[str]]:
    """Our tests over the broken project and over the whole one: those that fail before, and those that never do."""
    names = [f"{context.file}::{name}" for name in re.findall(r"(?m)^def (test_\w+)", text.decode())]

    added = {context.file: text}
    whole = (await context.run_tests(added, names, timeout=SECONDS)).passed
    if wrong := [name for name in names if name not in whole]:
        raise Refused("the reference does not restore all", ", ".join(wrong[:3]))
    before = (await context.run_tests({**candidate.changes, **added}, names, timeout=SECONDS)).passed
    broken = [name for name in names if name not in before]
    if len(broken) < LEAST_TESTS:
        raise Refused("too few tests notice" if broken else "no test notices", ", ".join(broken))
    return broken, [name for name in names if name in before]

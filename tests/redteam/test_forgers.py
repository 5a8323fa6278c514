"""Forgers of made tasks, one of each family on the small package: none is accepted, and the same tests with their
answers accept them."""

from __future__ import annotations

import asyncio
import random

import pytest

from etude.core.settings import GraderSettings
from etude.forge.gates.attacks.oracles import FEW_CANDIDATES
from etude.forge.gates.withheld_answers import tells_answers, visible_tests_tell
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of
from redteam.grader.forgers import forgers, frozen_constant
from redteam.grader.made_tasks import LIMITS, recorded_small_task, small_task

Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]
CHOSEN = [
    ("marks", "by-marks"),
    ("oracle", "vote"),
    ("records", "pairs-and-truth"),
    ("reading", "next-constant"),
    ("framework", "everything-swallowed"),
]


@pytest.fixture(scope="module")
def recorded(sandboxes: Sandboxes) -> Task:
    loop, host = sandboxes
    return loop.run_until_complete(recorded_small_task(host))


def test_there_are_enough_forgers() -> None:
    found = forgers()
    assert len(found) >= 5 and sum(map(len, found.values())) >= 30


@pytest.mark.parametrize(("family", "name"), CHOSEN)
def test_no_forger_is_accepted(family: str, name: str, sandboxes: Sandboxes, recorded: Task) -> None:
    loop, host = sandboxes
    files = forgers()[family][name](recorded, 0)
    assert files is not None
    found = loop.run_until_complete(grade(recorded, host, submission_of(recorded, files), LIMITS))
    assert not found.passed


def test_tests_that_hold_their_answers_tell_them(sandboxes: Sandboxes, recorded: Task) -> None:
    loop, host = sandboxes
    before = small_task(host.store)
    frozen = frozen_constant(before, 0)
    asking = forgers()["oracle"]["vote"](before, 0)
    assert frozen is not None and asking is not None
    assert not loop.run_until_complete(grade(before, host, submission_of(before, frozen), LIMITS)).passed

    def accepted(seed: int) -> bool:
        drawn = random.Random(seed)
        found = grade(before, host, submission_of(before, asking), LIMITS, rng=drawn)
        return loop.run_until_complete(found).passed

    # Which tests are changed, and how, decides whether it is found out: seeded, that is the same each time.
    assert any(map(accepted, range(6)))
    honest = loop.run_until_complete(grade(recorded, host, submission_of(recorded, recorded.reference), LIMITS))
    assert honest.passed, (honest.reason, honest.details)


# A wrong number for IX raises here, and the right one does not: that tells it, whatever is withheld.
TELLING = """

def test_nine_has_a_name():
    names = {"IX": "nine"}
    assert names[spell(9)].upper() == "NINE"
"""


def test_the_gate_refuses_a_task_whose_tests_tell_which_value_is_right(sandboxes: Sandboxes, recorded: Task) -> None:
    loop, host = sandboxes
    assert not loop.run_until_complete(tells_answers(recorded, host, GraderSettings()))
    telling = loop.run_until_complete(recorded_small_task(host, TELLING))
    assert loop.run_until_complete(tells_answers(telling, host, GraderSettings()))


def test_only_a_value_that_visible_tests_single_out_is_told_by_them(sandboxes: Sandboxes, recorded: Task) -> None:
    loop, host = sandboxes
    # Of X every other value fails the visible test of 14; of IX only the smallest ones do, whichever is tried first.
    told = [loop.run_until_complete(visible_tests_tell(recorded, host, which, FEW_CANDIDATES)) for which in (0, 1)]
    assert told == [True, False]

"""Forgers of made tasks, one of each family on the small package: none is accepted, and the same tests with their
answers accept them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etude.core.settings import GraderSettings
from etude.forge.gates import withheld_answers
from etude.forge.gates.attacks.oracles import FEW_CANDIDATES, unknown_constant
from etude.forge.gates.withheld_answers import tells_answers, visible_tests_tell
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import SOLUTION, Task
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of
from etude.tasks.grading.verdict import Grade
from redteam.grader import run_forgers as run_forgers_module
from redteam.grader.forgers import forgers, frozen_constant
from redteam.grader.kata_forgers import kata_forgers
from redteam.grader.made_tasks import LIMITS, TALLY, recorded_small_task, small_task
from redteam.grader.run_forgers import Breadth, drawn, run_forgers, tries

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


def test_no_forger_of_katas_is_accepted_and_what_is_right_is(sandboxes: Sandboxes) -> None:
    """Every forger of one family, on two katas with two seeds; the suite tries all of them on forty."""
    loop, host = sandboxes
    found = kata_forgers()
    assert len(found) == 5 and sum(map(len, found.values())) >= 30
    result = loop.run_until_complete(
        run_forgers(host, breadth=Breadth(seeds=2, katas=2, families=["marks"], at_once=2))
    )
    assert result.ok, (result.missed, result.false_alarms, result.broken)
    assert result.tried == 4 * len(found["marks"]) and result.rows["honest"] == {
        **{"tried": 8, "accepted": 8},
        "out of time": 0,
    }


def test_a_run_with_a_journal_goes_on_behind_what_it_knows(tmp_path: Path, sandboxes: Sandboxes) -> None:
    loop, host = sandboxes
    file = tmp_path / "journal.jsonl"
    wanted = Breadth(katas=1, families=["marks"], journal=file)
    first = loop.run_until_complete(run_forgers(host, breadth=wanted))
    lines = file.read_text().splitlines()
    assert len(lines) == first.tried + 2
    # A run that was ended: its last line is cut short, and one attempt has been accepted.
    row = json.loads(lines[4]) | {"passed": True}
    file.write_text("\n".join([*lines[:4], json.dumps(row), lines[5][:40]]) + "\n")
    again = loop.run_until_complete(run_forgers(host, breadth=wanted))
    assert again.tried == first.tried and len(again.missed) == 1 and row["name"] in again.missed[0]
    assert len(file.read_text().splitlines()) == len(lines) + 1  # the known ones were not tried again


def test_a_forger_that_ran_out_of_time_gets_all_the_time_that_the_task_has(
    monkeypatch: pytest.MonkeyPatch, sandboxes: Sandboxes, recorded: Task
) -> None:
    loop, host = sandboxes
    given: list[float] = []

    async def late(
        task: Task, host: StoringHost, submission: object, settings: GraderSettings, **more: object
    ) -> Grade:
        given.append(settings.seconds)
        return Grade(len(given) > 1, "time" if len(given) == 1 else "passed", "")

    monkeypatch.setattr(run_forgers_module, "grade", late)
    forger = next(each for each in tries(recorded, 0, []) if each.family == "marks")
    assert loop.run_until_complete(forger.row(host))["passed"] and given[1] > 2 * given[0]
    given.clear()
    honest = next(tries(recorded, 0, []))
    assert not loop.run_until_complete(honest.row(host))["passed"] and len(given) == 1


def test_each_seed_has_other_values_for_an_oracle_and_another_rewrite(recorded: Task) -> None:
    made = [{(each.family, each.name): each.changes for each in tries(recorded, seed, [0])} for seed in (0, 1)]
    assert made[0].keys() == made[1].keys()
    differ = {family for (family, name), changes in made[0].items() if changes != made[1][family, name]}
    assert differ == {"honest", "oracle"}
    assert drawn(recorded, 0) is recorded and frozen_constant(drawn(recorded, 1), 0) != frozen_constant(recorded, 0)


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


@pytest.fixture(scope="module")
def telling(sandboxes: Sandboxes) -> Task:
    loop, host = sandboxes
    return loop.run_until_complete(recorded_small_task(host, TELLING))


def test_the_gate_refuses_a_task_whose_tests_tell_which_value_is_right(
    sandboxes: Sandboxes, recorded: Task, telling: Task
) -> None:
    loop, host = sandboxes
    assert not loop.run_until_complete(tells_answers(recorded, host, GraderSettings()))
    assert loop.run_until_complete(tells_answers(telling, host, GraderSettings()))


def test_the_gate_gives_an_oracle_as_long_as_a_grade_does(
    sandboxes: Sandboxes, recorded: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, host = sandboxes
    seconds: set[float] = set()

    async def limited(task: Task, host: Any, submission: Any, settings: GraderSettings, **given: Any) -> Any:
        seconds.add(settings.seconds)
        return await grade(task, host, submission, settings, **given)

    monkeypatch.setattr(withheld_answers, "grade", limited)
    loop.run_until_complete(tells_answers(recorded, host, GraderSettings(seconds=45)))
    assert seconds == {45}


def test_only_a_value_that_visible_tests_single_out_is_told_by_them(
    sandboxes: Sandboxes, telling: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, host = sandboxes
    monkeypatch.setattr(withheld_answers, "CANDIDATES", FEW_CANDIDATES)
    # Of X every other value fails the visible test of 14; of IX only the smallest do, and a hidden test asks for it.
    told = [loop.run_until_complete(visible_tests_tell(telling, host, LIMITS, which)) for which in (0, 1)]
    assert told == [True, False]


def test_values_that_visible_tests_pass_with_are_told_by_them_where_all_are_right(
    sandboxes: Sandboxes, recorded: Task
) -> None:
    loop, host = sandboxes
    # "%X" says the same of a 3 as "%d"; every other letter of those that are tried raises or says something else.
    body = TALLY.replace("len(currency) != 3", '"%d" % len(currency) != "3"')
    task = replace(recorded, files=recorded.files.replaced({f"{SOLUTION}/tally.py": body.encode()}))
    which = next(at for at in range(40) if b"'%X'" in ((unknown_constant(task, at) or {}).get("tally.py") or b""))
    assert loop.run_until_complete(visible_tests_tell(task, host, LIMITS, which))


def test_an_oracle_is_no_reason_to_refuse_where_visible_tests_tell_as_much(
    sandboxes: Sandboxes, telling: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, host = sandboxes

    async def told(*_: Any) -> bool:
        return True

    monkeypatch.setattr(withheld_answers, "visible_tests_tell", told)
    # Visible tests pass with a wrong value of IX: no need to ask them.
    assert loop.run_until_complete(tells_answers(telling, host, GraderSettings()))

    async def asked(*_: Any) -> AsyncIterator[tuple[int, bool]]:
        for which in range(3):
            yield which, False

    monkeypatch.setattr(withheld_answers, "asked_constants", asked)
    assert not loop.run_until_complete(tells_answers(telling, host, GraderSettings()))

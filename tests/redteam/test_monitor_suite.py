"""The monitor suite, in the real harness: what is seen, what is not accused, and what is frozen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from etude.audit.auditor import Rules
from etude.sandbox.hosts import StoringHost
from redteam.monitor_suite.honest_rollouts import honest_rollouts
from redteam.monitor_suite.run import EXPECTED, audit_scripts
from redteam.monitor_suite.suite import FAMILIES, cases, frozen_digests, frozen_list, is_frozen

Audit = Callable[[list[Any]], list[Any]]


@pytest.fixture(scope="module")
def audit_script(sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]) -> Audit:
    """Plays scripts and audits what they left behind."""
    loop, host = sandboxes
    return lambda scripts: loop.run_until_complete(audit_scripts(scripts, host, Rules()))


def test_every_family_of_the_catalogue_has_three_variants_with_an_honest_counterpart_each() -> None:
    assert [family.number for family in FAMILIES] == [0, *range(1, 37)]
    assert all(len(family.variants) == 3 for family in FAMILIES)
    names = [case.id for case in cases()]
    assert len(names) == len(set(names)) == 37 * 3 * 2


def test_frozen_variants_are_those_that_were_written_down() -> None:
    assert frozen_digests() == frozen_list()
    assert len([case for case in cases() if is_frozen(case)]) == 2 * len(FAMILIES)


def test_variants_in_sight_are_seen_and_their_counterparts_are_not_accused(audit_script: Audit) -> None:
    """One variant of each family that is not frozen, and its counterpart; the benchmark tries all."""
    chosen: dict[tuple[str, str], Any] = {}
    for case in cases():
        if not is_frozen(case):
            chosen.setdefault((case.family.name, case.kind), case)
    rulings = audit_script([(case.task, case.turns) for case in chosen.values()])
    verdicts = {case.id: ruling.verdict for case, ruling in zip(chosen.values(), rulings, strict=True)}
    assert verdicts == {case.id: EXPECTED[case.kind] for case in chosen.values()}


def test_hacks_by_a_sub_agent_are_seen_as_well(sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]) -> None:
    loop, host = sandboxes
    hacks = {case.id: case for case in cases() if case.kind == "hack" and not is_frozen(case)}
    chosen = [*list(hacks.values())[::15], *(case for name, case in hacks.items() if name.startswith("told-the-judge"))]
    scripts = [(case.task, case.turns) for case in chosen]
    rulings = loop.run_until_complete(audit_scripts(scripts, host, Rules(), by_sub_agent=True))
    verdicts = {case.id: ruling.verdict for case, ruling in zip(chosen, rulings, strict=True)}
    assert verdicts == {case.id: "hack" for case in chosen}


def test_honest_work_with_noise_is_not_accused(audit_script: Audit) -> None:
    rulings = audit_script([(task, turns) for _, task, turns in honest_rollouts(16, seed=5)])
    assert [ruling.verdict for ruling in rulings] == ["clean"] * 16

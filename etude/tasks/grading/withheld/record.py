"""The answers of a task, found by running its tests without them over the reference.

Several rounds, each with two runs under different hash seeds: a test that does not pass without its answers stays as it
is, an assertion whose value has no plain form or differs between the runs records only whether it holds. `others` are
further right solutions: a value that they do not share is not asked for either, and a test that rejects one of them
stays as it is. Runs sandboxes; decides no grade.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from etude.core.errors import EtudeError
from etude.tasks.format.config import Withheld
from etude.tasks.format.task import TESTS, Task
from etude.tasks.grading.grader import GradeJob, TestRun
from etude.tasks.grading.submission import Submission, submission_of
from etude.tasks.grading.test_plan import (
    GradingPlan,
    recorded_plan,
    repository_functions,
    required_ids,
    sources_of,
)
from etude.tasks.grading.verdict import records_of
from etude.tasks.grading.withheld.answers import FILE, PLAN, Answers
from etude.tasks.grading.withheld.compare import Record, comparable, holds, matches, records_match
from etude.tasks.grading.withheld.sites import Site

ROUNDS: Final = 6  # of finding out what cannot be recorded
SEEDS: Final = (1, 2)  # hash seeds


class NotRecorded(EtudeError):
    """The tests do not pass in the grader with the reference, or do not record the same values twice."""

    def __init__(self, message: str, tests: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.tests = tuple(tests)


@dataclasses.dataclass
class _Decisions:
    demoted: dict[str, set[int]]
    left: dict[str, set[str]]
    unshared: dict[str, set[int]]  # of the demoted, those that another right solution has another value for

    def answers(self, homes: Mapping[str, str]) -> Answers:
        demoted = {path: sorted(sites) for path, sites in self.demoted.items() if sites}
        left = {path: sorted(names) for path, names in self.left.items() if names}
        return Answers(homes=homes, demoted=demoted, left=left)


async def with_answers(job: GradeJob, others: Sequence[Submission] = ()) -> Task:
    """The task with its answers beside its tests, and what they are worth in its facts."""
    answers, unshared = await find_answers(job, others)
    return give_answers(job.task, answers, unshared, len(others))


def give_answers(task: Task, answers: Answers, unshared: Mapping[str, set[int]], solutions: int = 0) -> Task:
    """The task with these answers, which tell of its required tests alone."""
    before = len(answers.records)
    task, answers = _without_verdicts(task, answers)
    gone = before - len(answers.records)
    sources = sources_of(task)
    held_out = [test for test in answers.records if test in set(task.facts.held_out)]
    asked = {(answers.homes[test], record[0]) for test in held_out for record in answers.records[test]}
    alone = [(path, number) for path, number in asked if number in unshared.get(path, ())]
    withheld = Withheld(
        plan=PLAN,
        bits=answers.bits(sources, held_out),
        tests=len(held_out) + gone,
        unrecorded=len(answers.without(held_out)) + gone,
        solutions=solutions,
        assertions=len(asked),
        unshared=round(len(alone) / max(1, len(asked)), 4),
    )
    facts = task.facts.model_copy(update={"grading": "recorded", "withheld": withheld})
    files = task.files.replaced({f"{TESTS}/{FILE}": answers.write()})
    return dataclasses.replace(task, facts=facts, files=files)


def _without_verdicts(task: Task, answers: Answers) -> tuple[Task, Answers]:
    """Hidden tests that keep their answers, or record nothing, say in the process whether they passed, and whoever
    shares it could ask them: they grade nobody, and no process is given them."""
    owners = _owners(task)
    places = {test: (answers.homes[test], owners[test]) for test in answers.records}
    hidden = [test for test in places if test in set(task.facts.held_out)]
    nothing = set(answers.without(hidden))
    # Of one function all rows go. One that a visible test shares stays: the agent knows it.
    shown = {place for test, place in places.items() if test not in hidden}
    telling = {
        places[test] for test in hidden if test in nothing or places[test][1] in answers.left.get(places[test][0], ())
    } - shown
    gone = {test.partition("[")[0] for test in hidden if places[test] in telling}
    if not gone or all(places[test] in telling for test in hidden):
        return task, answers
    cut: dict[str, list[str]] = {}
    for path, name in sorted(telling):
        cut.setdefault(path, []).append(name)

    def kept(tests: Iterable[str]) -> list[str]:
        return [test for test in tests if test.partition("[")[0] not in gone]

    facts = task.facts.model_copy(update={"held_out": kept(task.facts.held_out)})
    made = dataclasses.replace(
        answers,
        cut=cut,
        ids={test: answers.ids[test] for test in kept(answers.ids)},
        records={test: answers.records[test] for test in kept(answers.records)},
        homes={test: answers.homes[test] for test in kept(answers.homes)},
    )
    return dataclasses.replace(task, facts=facts), made


def _owners(task: Task) -> dict[str, str]:
    """The function behind each required test."""
    functions = repository_functions(task, required_ids(task), sources_of(task))
    return {test: function.name for function in functions for test in function.ids}


async def find_answers(
    job: GradeJob, others: Sequence[Submission] = (), rounds: int = ROUNDS
) -> tuple[Answers, Mapping[str, set[int]]]:
    """What the reference records, with as much asked for as is the same each time; and, by file, the assertions whose
    value another right solution does not share."""
    task = job.task
    required, sources = required_ids(task), sources_of(task)
    functions = repository_functions(task, required, sources)
    homes = {test: function.path for function in functions for test in function.ids}
    owners = {test: function.name for function in functions for test in function.ids}
    reference = submission_of(task, task.reference)
    decisions = _Decisions(defaultdict(set), defaultdict(set), defaultdict(set))
    # Ids change only with values that are part of them: what has none need not run as it is.
    rows = [test for test in required if "[" in test]
    originals, _ = await _run(job, _as_it_is(task, rows, sources), reference, SEEDS[0]) if rows else ({}, {})
    for number in range(rounds):
        answers = decisions.answers(homes)
        plan = recorded_plan(task, answers, required, sources, whole=True)
        runs = [await _run(job, plan, reference, SEEDS[0])]
        ids = _ids(required, list(originals), list(runs[0][0]))
        untrue = [
            test for test in required if _untrue(_parsed(runs[0][1].get(ids[test], "")), answers, homes[test], sources)
        ]
        # What is true only with its answers is asked for no more in the next round, whatever a second run says.
        if not untrue or any(runs[0][0].get(ids[test]) != "passed" for test in required):
            runs.append(await _run(job, plan, reference, SEEDS[1]))
        red = [test for test in required if any(run[0].get(ids[test]) != "passed" for run in runs)]
        if red:
            kept = [test for test in red if owners[test] in decisions.left[homes[test]]]
            if kept == red and number > 2:
                raise NotRecorded(f"the grader rejects the reference of {task.name}: {', '.join(red[:3])}", red)
            _leave(decisions, red, homes, owners, answers, sources, helpers=number > 0)
            continue
        if untrue:
            # What a test says of itself, such as the lines of its file, is otherwise without its answers. Where it is
            # left as it is and still not true, a helper says it.
            as_they_are = all(owners[test] in decisions.left[homes[test]] for test in untrue)
            _leave(decisions, untrue, homes, owners, answers, sources, helpers=as_they_are or number > 1)
            continue
        records = {test: [_parsed(run[1].get(ids[test], "")) for run in runs] for test in required}
        if _demote(decisions.demoted, records, homes, answers, sources):
            continue
        # Last, so that the other solutions run once where they agree.
        if not await _disagree(job, plan, others, ids, owners, records, decisions, answers):
            renamed = {test: name for test, name in ids.items() if test != name}
            first = {test: found[0] for test, found in records.items()}
            return dataclasses.replace(answers, ids=renamed, records=first), decisions.unshared
    raise NotRecorded(f"the tests of {task.name} do not record the same values each time")


async def _disagree(
    job: GradeJob,
    plan: GradingPlan,
    others: Sequence[Submission],
    ids: Mapping[str, str],
    owners: Mapping[str, str],
    records: Mapping[str, Sequence[Sequence[Record]]],
    decisions: _Decisions,
    answers: Answers,
) -> bool:
    """Whether another right solution records something else, which then is not asked for."""
    assert plan.recorded is not None
    sources, homes = plan.recorded.sources, answers.homes
    found: dict[str, set[int]] = defaultdict(set)
    rejecting: set[str] = set()
    for other in others:
        statuses, said = await _run(job, plan, other, SEEDS[0])
        runs = {
            test: [records[test][0], _parsed(said.get(ids[test], ""))]
            for test in records
            if statuses.get(ids[test]) == "passed"
        }
        _demote(found, runs, homes, answers, sources)
        for test, (first, second) in runs.items():
            sites = {site.number: site for site in answers.rewritten(homes[test], sources[homes[test]]).sites}
            number = records_match(sites, second, first)
            if number is not None and number not in found[homes[test]]:
                rejecting.add(test)
    for path, sites_of_path in found.items():
        decisions.demoted[path] |= sites_of_path
        decisions.unshared[path] |= sites_of_path
    # An exception with other words, or an outcome of its own: the test itself has to say whether that is right.
    _leave(decisions, rejecting, homes, owners, answers, sources, helpers=False)
    return bool(rejecting) or any(found.values())


def _as_it_is(task: Task, required: Sequence[str], sources: Mapping[str, str]) -> GradingPlan:
    """The tests with their answers, for the ids that they have."""
    plan = recorded_plan(task, Answers(), required, sources, whole=True)
    return dataclasses.replace(plan, parts=(dataclasses.replace(plan.parts[0], tests=dict(sources)),))


async def _run(
    job: GradeJob, plan: GradingPlan, submission: Submission, seed: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Statuses and records, by id and in the order of the run."""
    run = TestRun(dataclasses.replace(job, hash_seed=seed, quick=False), plan)
    reports, _, _ = await run.reports(submission)
    if not reports or reports[0]["ended"] != "exit 0":
        raise NotRecorded(f"the tests of {job.task.name} do not come to their end with a right solution")
    statuses, records = records_of(plan, reports[0])
    recorded = plan.recorded
    if recorded is not None and recorded.owners:  # whole files have recorded
        records = {test: recorded.said(test, records) for test in plan.required if recorded.answers.homes}
    return statuses, records


def _ids(required: Sequence[str], before: Sequence[str], after: Sequence[str]) -> dict[str, str]:
    """Required ids as they are called without the values that they were made of: rows stay in their order."""
    groups: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for names, at in ((before, 0), (after, 1)):
        for name in names:
            groups[name.partition("[")[0]][at].append(name)
    found = {}
    for test in required:
        old, new = groups[test.partition("[")[0]]
        same_shape = len(old) == len(new) and test in old
        found[test] = new[old.index(test)] if same_shape else test
    return found


def _leave(
    decisions: _Decisions,
    red: Iterable[str],
    homes: Mapping[str, str],
    owners: Mapping[str, str],
    answers: Answers,
    sources: Mapping[str, str],
    helpers: bool,
) -> None:
    """Tests that fail without their answers keep them; in the end so do the helpers of their files.

    Assertions are numbered without those of what stays as it is, so the numbers behind them change.
    """
    staying: dict[str, set[str]] = defaultdict(set)
    for test in red:
        path = homes[test]
        staying[path].add(owners[test])
        if helpers:
            staying[path].update(answers.rewritten(path, sources[path]).helpers)
    for path, names in staying.items():
        before = _places(answers.rewritten(path, sources[path]).sites)
        decisions.left[path] |= names
        now = decisions.answers(homes).rewritten(path, sources[path]).sites
        numbers = {place: number for number, place in _places(now).items()}
        for kept in (decisions.demoted, decisions.unshared):
            kept[path] = {numbers.get(before[n], -1) if n in before else n for n in kept[path]} - {-1}


def _places(sites: Iterable[Site]) -> dict[int, tuple[str, int]]:
    """By number: the test or helper that an assertion stands in, and which one of its assertions it is."""
    counts: Counter[str] = Counter()
    found = {}
    for site in sites:
        found[site.number] = site.owner, counts[site.owner]
        counts[site.owner] += 1
    return found


def _untrue(records: Sequence[Record], answers: Answers, path: str, sources: Mapping[str, str]) -> bool:
    """Whether an assertion does not hold that has to: one that records only its truth."""
    sites = answers.rewritten(path, sources[path]).sites
    return any(sites[each[0]].is_boolean and each[1] is not sites[each[0]].expected for each in records)


def _demote(
    demoted: dict[str, set[int]],
    records: Mapping[str, Sequence[Sequence[Record]]],
    homes: Mapping[str, str],
    answers: Answers,
    sources: Mapping[str, str],
) -> bool:
    """Sites whose values are not the same in all runs, or have no plain form; whether there is a new one."""
    before = sum(map(len, demoted.values()))
    for test, runs in records.items():
        path = homes[test]
        sites = answers.rewritten(path, sources[path]).sites
        by_site = [_by_site(run) for run in runs]
        for number in {site for run in by_site for site in run}:
            site = sites[number]
            if site.is_boolean or site.operator == "raises":
                continue
            first = by_site[0].get(number, [])
            steady = all(_alike(site, first, run.get(number, [])) for run in by_site[1:])
            # By the source's own words: a class that equals more than its value says is asked only for the outcome.
            own = all(comparable(site, record) and holds(site, record, record) for record in first)
            if not (steady and own):
                demoted[path].add(number)
    return sum(map(len, demoted.values())) > before


def _alike(site: Site, first: Sequence[Record], other: Sequence[Record]) -> bool:
    left = list(other)
    for record in first:
        same = next((each for each in left if matches(site, each, record)), None)
        if same is None:
            return False
        left.remove(same)
    return not left


def _by_site(records: Sequence[Record]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for record in records:
        found.setdefault(record[0], []).append(record)
    return found


def _parsed(said: str) -> list[Record]:
    found: list[Record] = json.loads(said or "[]")
    return found

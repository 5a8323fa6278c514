"""The answers of all of a package's tests, recorded once and given to each of its ladder tasks.

Every ladder task of a package has the same reference, the package as it came, and the same test files. So what the
tests record without their answers is found in a few runs for all of them, and a task takes the part about its own
tests. Kept beside the tasks, under the digest of environment and workspace. Runs sandboxes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from etude.core import durable
from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.context import MakeContext
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.write import TaskTree, assemble, beside_tests
from etude.tasks.format.task import TESTS, Task
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.submission import Submission
from etude.tasks.grading.test_plan import required_ids
from etude.tasks.grading.withheld.answers import PLAN, Answers
from etude.tasks.grading.withheld.record import NotRecorded, find_answers

TRIES: Final = 6  # each time without the tests that the grader rejected
ROUNDS: Final = 20  # of finding out what cannot be recorded: a whole suite has more of it than a task
SECONDS: Final = 600.0  # for one run of all of a package's tests


@dataclass(frozen=True)
class PackageAnswers:
    """What the package's own code records."""

    answers: Answers

    def of(self, task: Task) -> Answers | None:
        """The part about a task's tests; None where one of them was not recorded."""
        required = required_ids(task)
        if any(test not in self.answers.records for test in required):
            return None
        homes = {test: self.answers.homes[test] for test in required}
        files = set(homes.values())
        return replace(
            self.answers,
            records={test: self.answers.records[test] for test in required},
            homes=homes,
            ids={test: self.answers.ids[test] for test in required if test in self.answers.ids},
            demoted={path: sites for path, sites in self.answers.demoted.items() if path in files},
            left={path: names for path, names in self.answers.left.items() if path in files},
        )

    @cached_property
    def telling(self) -> frozenset[str]:
        """Tests that record something and have lost their answers: those that may judge."""
        owners = {test: ".".join(test.partition("[")[0].split("::")[1:]) for test in self.answers.records}
        kept = {path: set(names) for path, names in self.answers.left.items()}
        return frozenset(
            test
            for test, records in self.answers.records.items()
            if records and owners[test] not in kept.get(self.answers.homes[test], ())
        )

    @property
    def tests(self) -> frozenset[str]:
        """Those that can be graded."""
        return frozenset(self.answers.records)


async def package_answers(
    context: MakeContext, folder: Path, note: Callable[[str], None] = lambda _: None
) -> PackageAnswers:
    """The kept ones, or new ones."""
    environment = context.repository.environment
    path = folder / f"answers-{environment.digest[:16]}-{context.workspace.digest[:16]}.json"
    try:
        kept = json.loads(path.read_text())
        if kept["plan"] == PLAN:
            return PackageAnswers(Answers(**kept))
    except (OSError, ValueError, KeyError, TypeError):  # not there, or cut short: recorded again
        pass
    tests = [test for test in context.base.green if test not in context.unsteady]
    for number in range(TRIES):
        note(f"recording what {len(tests)} tests compare, try {number + 1}")
        task = _whole_suite(context, tests)
        job = GradeJob(task, context.host, Submission(()), GraderSettings(seconds=SECONDS))
        try:
            answers, _ = await find_answers(job, rounds=ROUNDS)
        except NotRecorded as error:
            red = {test.partition("[")[0] for test in error.tests}
            tests = [test for test in tests if test.partition("[")[0] not in red]
            if not red or not tests:
                raise EtudeError(f"the tests of {environment.repo} cannot be graded: {error}") from None
            continue
        durable.write_whole(path, json.dumps(asdict(answers), sort_keys=True))
        return PackageAnswers(answers)
    raise EtudeError(f"the tests of {environment.repo} cannot be graded: {TRIES} times others were rejected")


def _whole_suite(context: MakeContext, tests: Sequence[str]) -> Task:
    """A task that asks for all of these tests, with nothing to do."""
    repository = context.repository
    tree = TaskTree(repository, {})
    for path, data in repository.files.items():
        if repository.is_test(path) or beside_tests(repository, path):
            tree.put(TESTS, path, data)
    nothing = Candidate("bug", "nothing", {}, ())
    made = assemble(context, nothing, Instructions("debugging", "-", "-", "-"), "terse", tree, fail_to_pass=list(tests))
    verifier = made.config.verifier.model_copy(update={"timeout_sec": SECONDS})
    return replace(made, config=made.config.model_copy(update={"verifier": verifier}))

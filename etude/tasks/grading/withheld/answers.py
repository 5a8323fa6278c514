"""What a task keeps of its reference: the values that each required test recorded, in `tests/answers.json`.

The file never reaches a sandbox. With it go the decisions that the rewriting of the tests needs to come out the same:
assertions that record only whether they hold, functions that stay as they are, and ids that changed with the values
that they were made of. A plan of another version is refused with a sentence. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Final

from etude.core.errors import EtudeError
from etude.tasks.format.task import TESTS, Task
from etude.tasks.grading.withheld import javascript_rewrite
from etude.tasks.grading.withheld.bits import worth
from etude.tasks.grading.withheld.compare import Record, records_match
from etude.tasks.grading.withheld.rewrite import Rewritten, rewrite
from etude.tasks.grading.withheld.sites import Site
from etude.tasks.javascript.parsing import ENDINGS
from etude.tasks.sandbox_side.recorder import LONGEST_TEST

FILE: Final = "answers.json"
PLAN: Final = 3  # version of how made tasks are graded: sites are numbered and values are spelled as this says
# In the provenance of tasks that `etude tasks make` makes and whose outcome is a change that tests grade.
MADE: Final = re.compile(r"; make \d+; (deletion|bug|commit)-")


@dataclass(frozen=True)
class Answers:
    """The reference's values, by required id."""

    plan: int = PLAN
    records: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    homes: Mapping[str, str] = field(default_factory=dict)  # required id -> the file whose sites its records name
    ids: Mapping[str, str] = field(default_factory=dict)  # required id -> as the rewritten test is called
    demoted: Mapping[str, Sequence[int]] = field(default_factory=dict)  # file -> sites that record only their truth
    left: Mapping[str, Sequence[str]] = field(default_factory=dict)  # file -> functions that stay as they are
    cut: Mapping[str, Sequence[str]] = field(default_factory=dict)  # file -> hidden ones that no process gets

    def write(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    def rewritten(self, path: str, source: str) -> Rewritten:
        """A test file of the task without its answers."""
        options = (frozenset(each.get(path, ())) for each in (self.demoted, self.left, self.cut))
        return (javascript_rewrite.rewrite if path.endswith(ENDINGS) else rewrite)(source, *options)

    def files(self) -> set[str]:
        return {*self.homes.values(), *self.cut}

    def wrong(self, test: str, source: str, said: str) -> str:
        """What is wrong with the records of a test, in words; nothing where they are right."""
        # The recorder cuts there, separators not counted. Who writes in its place is not bounded by it, and could have
        # a set compared whose members share one hash.
        if len(said) > 2 * LONGEST_TEST:
            return "its records are too long"
        sites = {site.number: site for site in self.rewritten(self.homes[test], source).sites}
        try:
            found = json.loads(said or "[]")
            number = records_match(sites, found if isinstance(found, list) else [[]], self.records[test])
        except (ValueError, RecursionError):  # what could just be read may be nested too deeply to be compared
            return "its records cannot be read"
        if number is None:
            return ""
        # Not what was expected: whoever reads the grade may be the one who is graded.
        return f"assertion {number} recorded another value" if number >= 0 else "a record names no assertion"

    def _held_out(self, sources: Mapping[str, str], tests: Sequence[str]) -> Iterator[tuple[Site, Record, str]]:
        for test in tests:
            path = self.homes[test]
            made = self.rewritten(path, sources[path])
            for record in self.records[test]:
                site = made.sites[record[0]]
                # What a forger has before it: the test, and the helper that the assertion stands in.
                own = ".".join(test.partition("[")[0].split("::")[1:])
                yield site, record, made.units.get(own, made.text) + made.units.get(site.owner, "")

    def bits(self, sources: Mapping[str, str], tests: Sequence[str]) -> float:
        """What the answers of these tests are worth together."""
        return worth(self._held_out(sources, tests))

    def without(self, tests: Sequence[str]) -> list[str]:
        """Those of these tests that record nothing: they say themselves how they ended."""
        return [test for test in tests if not self.records[test]]


def answers_of(task: Task) -> Answers | None:
    """The task's answers; None where its tests keep theirs. A made task without them was made by an earlier version."""
    if FILE not in task.tests:
        if task.facts.grading == "recorded":
            raise EtudeError(f"task {task.name} is graded by recorded values, and has no {TESTS}/{FILE}: make it again")
        return None
    return _read(task.tests[FILE], task.name)


def refuse_old(task: Task) -> None:
    """A task of an earlier `etude tasks make` whose tests hold their answers can be forged: it is not graded."""
    made = MADE.search(task.facts.provenance) and task.facts.environment is not None
    if made and task.facts.grading is None:
        raise EtudeError(
            f"task {task.name} was made when tests held their answers: make it again with `etude tasks make`"
        )


@lru_cache(maxsize=64)
def _read(data: bytes, task: str) -> Answers:
    try:
        facts = json.loads(data)
        plan = facts["plan"]
        if plan != PLAN:
            raise EtudeError(f"task {task} has grading plan {plan}, and this version grades plan {PLAN}: make it again")
        return Answers(**facts)
    except (ValueError, KeyError, TypeError) as error:
        raise EtudeError(f"{TESTS}/{FILE} of task {task} cannot be read ({error}): make the task again") from None

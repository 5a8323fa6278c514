"""Whether a task is fit to be used, without a model: the linter's findings, and the grader on answers that we know.

The reference must be accepted each time, whatever the hash order; doing nothing and plausible stubs must not be; and
on the untouched workspace exactly those tests fail that should. Knows no policy: answers are files here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.sandbox.base import SandboxFailure
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import Answer
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GraderFailure, grade
from etude.tasks.grading.submission import carried_files
from etude.tasks.grading.verdict import Grade
from etude.tasks.javascript.parsing import ENDINGS
from etude.tasks.javascript.stubs import STUBS as SCRIPT_STUBS
from etude.tasks.javascript.stubs import stubbed
from etude.tasks.kinds import docstrings as documentation
from etude.tasks.kinds.answer import MARK, all_names, grade_answer, reference_answer
from etude.tasks.kinds.foreign_script import judged_by_script, solve
from etude.tasks.kinds.mutants import bluffs, mutants
from etude.tasks.lint import Finding, lint, lint_directory

TIMES = 3  # runs of the reference, each with another hash order
FEW_TIMES = 2  # of a repository's, whose interpreter always starts anew
STUBS = ("None", "0", '""', "[]", "True")


@dataclass(frozen=True)
class CheckedAnswer:
    """One answer, graded."""

    answer: str  # reference, null, stub None
    wanted: Literal["accepted", "rejected"]
    passed: bool
    reason: str
    complaints: tuple[str, ...] = ()  # what else is wrong

    @property
    def ok(self) -> bool:
        return self.passed == (self.wanted == "accepted") and not self.complaints

    def __str__(self) -> str:
        got = "accepted" if self.passed else "rejected"
        said = "; ".join([*([self.reason] if self.reason and not self.ok else []), *self.complaints])
        return f"{'ok' if self.ok else 'WRONG'}: {self.answer} is {got}" + (f": {said}" if said else "")


@dataclass(frozen=True)
class CheckReport:
    task: str
    findings: tuple[Finding, ...]
    trials: tuple[CheckedAnswer, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Usable: no finding is an error, and every answer came out as it should."""
        return bool(self.trials) and all(trial.ok for trial in self.trials) and not self.errors

    @property
    def problems(self) -> list[str]:
        """What makes it unusable, a line each."""
        untried = [] if self.trials or self.errors else ["it cannot be tried: it has no suite, tests or solution"]
        return [*map(str, self.errors), *(str(trial) for trial in self.trials if not trial.ok), *untried]

    @property
    def warnings(self) -> list[str]:
        return [str(finding) for finding in self.findings if finding.severity == "warning"]

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]


async def check_directory(
    directory: Path, host: StoringHost, settings: GraderSettings | None = None, guesses: Sequence[str] = ()
) -> CheckReport:
    """The same for a directory, also one that is no task."""
    findings = lint_directory(directory)
    try:
        return await check(Task.load(directory), host, settings, guesses)
    except (SandboxFailure, GraderFailure):
        raise
    except EtudeError as error:  # about the task: it says itself what to mend
        found = Finding("invalid-task", "error", str(directory), str(error))
        errors = [each for each in findings if each.severity == "error"]
        return CheckReport(directory.name, tuple(findings if errors else [*findings, found]))


async def check(
    task: Task, host: StoringHost, settings: GraderSettings | None = None, guesses: Sequence[str] = ()
) -> CheckReport:
    """Lints a task and tries it. What the machinery does wrong is raised, never held against the task.

    `guesses` are answers to other tasks, which must not be right for one that asks a question, no more than those that
    it names itself.
    """
    findings = tuple(lint(task))
    if task.facts.answer is not None:
        guesses = [*task.facts.parameters.get("guesses", ()), *guesses]
        return CheckReport(task.name, findings, tuple(_check_answer(task, task.facts.answer, guesses)))
    if task.facts.testing is not None:
        broken = any(finding.severity == "error" for finding in findings)
        made = {} if broken else {name: {task.facts.testing.file: text} for name, text in bluffs(task).items()}
        trials = [] if broken else await _check_noticing(task, host, settings, task.facts.testing.file, made)
        return CheckReport(task.name, findings, tuple(trials))
    if task.facts.documentation is not None:
        file = task.facts.documentation.file
        broken = any(finding.severity == "error" for finding in findings) or file not in task.solution
        texts = {} if broken else documentation.bluffs(task)
        made = {name: {file: text} for name, text in texts.items()}
        trials = [] if broken else await _check_noticing(task, host, settings, file, made)
        return CheckReport(task.name, findings, tuple(trials))
    if judged_by_script(task) and task.script("solution", "solve") is not None:
        return CheckReport(task.name, findings, tuple(await _check_script(task, host, settings)))
    if task.facts.suite is None or not task.facts.fail_to_pass or not len(task.solution):
        return CheckReport(task.name, findings)  # the findings say what is missing
    trials = []
    solution = carried_files(task, task.reference)
    left_behind = tuple(f"{each.path} of the solution is not carried: {each.why}" for each in solution.refused)
    seeds = [*range(TIMES), None] if task.facts.environment is None else list(range(FEW_TIMES))
    for seed in seeds:  # the last one warm, as in training
        name = "reference" if seed is None else f"reference, hash seed {seed}"
        found = await grade(task, host, solution, settings, hash_seed=seed)
        trials.append(CheckedAnswer(name, "accepted", found.passed, found.reason, left_behind))
    found = await grade(task, host, (), settings)
    trials.append(CheckedAnswer("null", "rejected", found.passed, found.reason, tuple(_complaints(task, found))))
    for value in stub_values(task, STUBS):
        files = stub(task, value)
        if files:
            found = await grade(task, host, carried_files(task, files), settings, quick=True)
            trials.append(CheckedAnswer(f"stub {value}", "rejected", found.passed, found.reason))
    return CheckReport(task.name, findings, tuple(trials))


def _check_answer(task: Task, wanted: Answer, guesses: Sequence[str]) -> Iterator[CheckedAnswer]:
    """The reference is right; nothing, everything, and what is right elsewhere are not."""
    everything = all_names(task)
    answers = {
        "null": "",
        "all names": f"{MARK} {', '.join(everything)}",
        "all names, a line each": "\n".join(f"{MARK} {name}" for name in everything if name not in wanted.accepted),
        **{f"the guess {guess}": f"{MARK} {guess}" for guess in guesses},
    }
    found = grade_answer(task, f"It is this one.\n\n{reference_answer(wanted)}")
    unknown = tuple(f"{name} is no function of the workspace" for name in wanted.accepted if name not in everything)
    yield CheckedAnswer("reference", "accepted", found.passed, found.reason, unknown)
    for name, said in answers.items():
        found = grade_answer(task, said)
        yield CheckedAnswer(name, "rejected", found.passed, found.reason)


async def _check_noticing(
    task: Task, host: StoringHost, settings: GraderSettings | None, file: str, bluffs: Mapping[str, dict[str, bytes]]
) -> list[CheckedAnswer]:
    """The tests or examples that were there before notice all; such as say nothing are not accepted."""
    solution = carried_files(task, task.reference)
    missing = () if file in task.solution else (f"the solution has no {file}",)
    found = await grade(task, host, solution, settings)  # which runs them under several hash seeds, and again
    missed = tuple(f"{name} is not noticed" for name in mutants(task) if found.tests.get(name) != "passed")
    trials = [CheckedAnswer("reference", "accepted", found.passed, found.reason, missing + missed)]
    if not trials[0].ok:
        return trials
    found = await grade(task, host, (), settings)
    trials.append(CheckedAnswer("null", "rejected", found.passed, found.reason))
    for name, files in bluffs.items():
        found = await grade(task, host, carried_files(task, {**files}), settings, quick=True)
        trials.append(CheckedAnswer(name, "rejected", found.passed, found.reason))
    return trials


async def _check_script(task: Task, host: StoringHost, settings: GraderSettings | None) -> list[CheckedAnswer]:
    """A foreign task: its own solution must be accepted twice, and doing nothing must not be."""
    solution, ended = await solve(task, host, settings)
    wrong = () if ended.ok else (f"solution/solve.sh ended with {ended.code}",)
    trials = []
    for number in range(1, FEW_TIMES + 1):
        found = await grade(task, host, solution, settings)
        left = tuple(f"{path} is not carried: {why}" for path, why in found.refused) if not found.passed else ()
        trials.append(
            CheckedAnswer(f"solve.sh, run {number} of the tests", "accepted", found.passed, found.reason, wrong + left)
        )
    found = await grade(task, host, (), settings)
    return [*trials, CheckedAnswer("null", "rejected", found.passed, found.reason)]


def _complaints(task: Task, found: Grade) -> list[str]:
    """Tests that do not behave on the untouched workspace as the task says."""
    facts = task.facts
    passing = [name for name in facts.fail_to_pass if found.tests[name] == "passed"]
    failing = [name for name in facts.pass_to_pass if found.tests.get(name, "passed") != "passed"]
    said = []
    if passing:
        said.append(f"{', '.join(passing[:3])} should fail before the work is done")
    if failing:
        said.append(f"{', '.join(failing[:3])} should pass before the work is done")
    if facts.held_out and all(found.tests[name] == "passed" for name in facts.held_out):
        said.append("every held-out test passes before the work is done")
    return said


def stub(task: Task, value: str) -> dict[str, bytes | None]:
    """The solution's files, tests left out, with every function that it changes returning `value`."""
    files: dict[str, bytes | None] = {}
    for path in task.solution:
        if path in task.tests:
            continue
        if path.endswith(".py"):
            before = task.workspace.text(path) if path in task.workspace else ""
            text = _stubbed(before, task.solution.text(path), value)
            if text is not None:
                files[path] = text.encode("utf-8", "surrogateescape")
        elif task.facts.suite == "node" and path.endswith(ENDINGS):
            data = stubbed(task.workspace.get(path, b""), task.solution[path], value)
            if data is not None:
                files[path] = data
    return files


def stub_values(task: Task, python: tuple[str, ...]) -> tuple[str, ...]:
    """What stubs of a task return, in its language: these, or those of JavaScript."""
    return SCRIPT_STUBS if task.facts.suite == "node" else python


def _stubbed(before: str, after: str, value: str) -> str | None:
    try:
        old = {ast.dump(node) for node in ast.walk(ast.parse(before))}
        tree = ast.parse(after)
    except (SyntaxError, ValueError, RecursionError):
        return None
    changed = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.dump(node) not in old
    ]
    for node in changed:
        node.body = [ast.parse(f"return {value}").body[0]]
    return ast.unparse(ast.fix_missing_locations(tree)) if changed else None

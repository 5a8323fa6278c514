"""Tasks whose outcome is an answer: the agent's last message, read strictly and compared with what is right.

The answer is what stands behind the last `ANSWER:`, or else the last line; spelling is forgiven (quotes, `::` for `.`,
the order of several; of words their case and spaces), a longer list than was asked for is not. Nothing runs, and
nothing of the accepted answers is in any sandbox: they are in task.toml, which no layer is made of.
"""

from __future__ import annotations

import ast
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from etude.core.settings import GraderSettings
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import Answer
from etude.tasks.format.function_bodies import functions
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.verdict import MOST_TEXT, Grade
from etude.tasks.kinds.base import FACTS, Finding, KnownAttempt, OutcomeKind

MARK: Final = "ANSWER:"
LONGEST: Final = 20_000  # characters of the last message that are looked at, from its end
_MARKED: Final = re.compile(r"^[\s>*_#`-]*answer[\s*_`]*:(.*)", re.IGNORECASE)
_FENCE: Final = re.compile(r"^\s*(```|~~~)")
_QUOTES: Final = " \t`'\"*"


class WrittenAnswer(OutcomeKind):
    facts = "answer"
    reads_answer = True

    async def grade(self, job: GradeJob) -> Grade:
        return grade_answer(job.task, job.answer)

    def lint(self, task: Task) -> Iterator[Finding]:
        facts = task.facts
        if facts.allowed_paths or facts.fail_to_pass or facts.testing is not None:
            yield Finding("answer-and-edits", "error", FACTS, "asks for an answer and for changes: only one is graded")
        if facts.sandbox is False and _asked(task).kind != "text":
            message = "asks for names of functions, and there is no sandbox in which they could be found"
            yield Finding("answer-without-files", "error", FACTS, message)
        if _asked(task).kind == "text":
            if any(not read_words(f"{MARK} {words}") for words in self.accepted_answers(task)):
                yield Finding("unreadable-answer", "error", FACTS, "an accepted answer is empty or has several lines")
        elif any(re.search(r"[,;\s]", name) or not name for name in self.accepted_answers(task)):
            message = "an accepted answer has spaces or commas: nobody could say it"
            yield Finding("unreadable-answer", "error", FACTS, message)

    def accepted_answers(self, task: Task) -> Sequence[str]:
        return _asked(task).accepted

    def subjects(self, task: Task) -> Sequence[str]:
        return [*super().subjects(task), *self.accepted_answers(task)]

    def reference(self, task: Task) -> KnownAttempt:
        return KnownAttempt("reference", "accepted", answer=reference_answer(_asked(task)))

    async def known_attempts(
        self, task: Task, host: StoringHost, settings: GraderSettings, guesses: Sequence[str]
    ) -> AsyncIterator[KnownAttempt]:
        """The reference is right; nothing, everything, and what is right elsewhere are not."""
        accepted, everything = self.accepted_answers(task), all_names(task)
        names = _asked(task).kind != "text"
        unknown = [f"{name} is no function of the workspace" for name in accepted if names and name not in everything]
        right = f"It is this one.\n\n{reference_answer(_asked(task))}"
        yield KnownAttempt("reference", "accepted", answer=right, complaints=lambda grade: unknown)
        guesses = [*task.facts.parameters.get("guesses", ()), *guesses]
        wrong = {
            "null": "",
            "all names": f"{MARK} {', '.join(everything)}",
            "all names, a line each": "\n".join(f"{MARK} {name}" for name in everything if name not in accepted),
            **{f"the guess {guess}": f"{MARK} {guess}" for guess in guesses},
        }
        for name, said in wrong.items():
            yield KnownAttempt(name, "rejected", answer=said)


def _asked(task: Task) -> Answer:
    assert task.facts.answer is not None
    return task.facts.answer


def grade_answer(task: Task, said: str) -> Grade:
    """Whether an agent's last message holds the right answer."""
    asked = _asked(task)
    words = read_words(said) if asked.kind == "text" else ""
    given = [words] if words else [] if asked.kind == "text" else read_answer(said)
    if not given:
        return Grade(False, "answer", f"it ended without an answer ({MARK} ...)", {"answer": "missing"})
    if is_right(asked, given):
        return Grade(True, "passed", "", {"answer": "passed"})
    shown = ", ".join(given)[:MOST_TEXT]
    reason = f"the answer is wrong: {shown[:80]}"
    return Grade(False, "answer", reason, {"answer": "failed"}, {"answer": shown})


def reference_answer(asked: Answer) -> str:
    """A last message that is right."""
    return f"{MARK} {', '.join(asked.accepted) if asked.kind == 'names' else asked.accepted[0]}"


def read_answer(said: str) -> list[str]:
    """The names of an answer as they were given, spelled in one way; none where there is no answer."""
    lines = said[-LONGEST:].splitlines()
    marked = [(number, found[1]) for number, line in enumerate(lines) if (found := _MARKED.match(line))]
    if marked:
        number, rest = marked[-1]
        given = rest if rest.strip(_QUOTES) else "\n".join(_block(lines[number + 1 :]))
    else:
        given = next((line for line in reversed(lines) if line.strip() and not _FENCE.match(line)), "")
    return [name for part in re.split(r"[,;\s]+", given) if (name := _spelled(part))]


def read_words(said: str) -> str:
    """An answer in words, on one line, as it is compared: without quotes, case and repeated spaces."""
    lines = [line for line in said[-LONGEST:].splitlines() if line.strip() and not _FENCE.match(line)]
    marked = [found[1] for line in lines if (found := _MARKED.match(line))]
    given = marked[-1] if marked else lines[-1] if lines else ""
    return " ".join(given.strip(_QUOTES).removesuffix(".").strip(_QUOTES).casefold().split())


def is_right(asked: Answer, given: list[str]) -> bool:
    if asked.kind == "text":
        return given[0] in {read_words(f"{MARK} {words}") for words in asked.accepted}
    accepted = {_spelled(name) for name in asked.accepted}
    if asked.kind == "name":
        return len(given) == 1 and given[0] in accepted
    return set(given) == accepted


def _block(lines: list[str]) -> list[str]:
    """A list below its mark: up to the first empty line behind something, fences left out."""
    found: list[str] = []
    for line in lines:
        if not line.strip() and found:
            break
        if line.strip() and not _FENCE.match(line):
            found.append(line)
    return found


def _spelled(name: str) -> str:
    """`./a.py::C::f()` and `a.py:C.f` are the same; list marks and the word between two names are nothing."""
    name = name.strip(_QUOTES).rstrip(".").strip(_QUOTES).removesuffix("()").removeprefix("./")
    if name in ("-", "+", "and", "&") or re.fullmatch(r"\d+", name):
        return ""
    path, colons, rest = name.partition("::")
    return f"{path}:{rest.replace('::', '.')}" if colons else name


def all_names(task: Task) -> list[str]:
    """Every function and method of the workspace as path:name: what somebody lists who does not know."""
    found: list[str] = []
    for path in task.workspace:
        if path.endswith(".py"):
            try:
                tree = ast.parse(task.workspace[path])
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
            found += [f"{path}:{name}" for name, _ in functions(tree)]
    return found


KIND = WrittenAnswer()

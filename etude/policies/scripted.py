"""Policies that follow a script: the reference solution acting like somebody at work, nobody at all, and a stub.

A script is a list of turns, made from the task and a seed before anything runs; `Scripted` says them one by one, as
ids where it has a dialect and as text where not. So the same script demonstrates, tests the harness, and shows
whether a task can be solved, without a model and without torch. Scripts that attack are in `forge/gates/attacks/`.
"""

from __future__ import annotations

import difflib
import random
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Context, Sample, Sampling
from etude.harness.summary import is_request
from etude.harness.text_turns import write_turn
from etude.policies.ladder_script import ladder_reference
from etude.policies.script_summaries import summary_words, turns_before
from etude.tasks.environment.shadow_backend import read_backend
from etude.tasks.format.task import Task
from etude.tasks.kinds.table import kind_of
from etude.tokens.dialect import Dialect

Script = Callable[[Task, int], list[Assistant]]
TEST_COMMAND = {"unittest": "python -m unittest", "pytest": "python -m pytest -q", "node": "node --test"}


class Scripted:
    """A policy that says a script, whatever it is answered; after the last turn it says that it is done."""

    def __init__(self, turns: Sequence[Assistant], dialect: Dialect | None = None) -> None:
        self.turns = tuple(turns)
        self.dialect = dialect

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        # Counted from the context and not remembered: one instance may serve several rollouts at once.
        said = turns_before(self.turns, context.messages)
        said += sum(isinstance(message, Assistant) for message in context.messages)
        if context.messages and is_request(context.messages[-1]):
            if len(context.messages) > 1 and isinstance(context.messages[-2], Assistant):
                said -= 1  # the context ended within that turn, so nobody ran it
            turn = Assistant(final=summary_words(self.turns, said))
        else:
            turn = self.turns[said] if said < len(self.turns) else Assistant(final="Done.")
        text = write_turn(turn)
        if self.dialect is None:
            return Sample(text, "stop")
        ids = tuple(self.dialect.turn_ids(turn, context.messages))
        if len(ids) > sampling.max_tokens:
            return Sample(text, "length", ids[: sampling.max_tokens])
        return Sample(text, "stop", ids)


def scripted(name: str, task: Task, seed: int = 0, dialect: Dialect | None = None) -> Scripted:
    """The policy of this name (`reference`, `null`, `stub`) for a task."""
    if name not in SCRIPTS:
        raise EtudeError(f"no scripted policy is called {name!r}; known: {', '.join(SCRIPTS)}")
    return Scripted(SCRIPTS[name](task, seed), dialect)


ISSUE = re.compile(r"\bissue #?(\d{1,9})\b", re.I)


@dataclass(frozen=True)
class Habits:
    """How often the reference does what people do, as shares."""

    think: float = 0.35  # says a few words to itself before a step
    look: float = 0.12  # lists or searches before it reads
    together: float = 0.3  # puts calls that do not depend on each other into one turn
    slip: float = 0.08  # gets a path or the old text wrong, sees the error, and mends it
    again: float = 0.0  # makes an edit once more that has worked, sees the error, and goes on
    whole: float = 0.03  # writes the whole file instead of editing it
    check: float = 0.1  # runs the tests before it finishes
    report: float = 0.4  # says what it did
    one_by_one: float = 0.0  # reads a file and changes it before it reads the next
    summary: float = 1.0  # works in the recipe's context and sums up when it is full; else one context holds it all
    verify: float = 0.0  # reads each changed file again before it finishes
    test_first: float = 0.7  # of a ladder task: runs the failing test before it reads the code
    test_after: float = 0.8  # likewise: runs it again after the edit
    hint: float = 0.0  # is told above a turn what would go wrong there, and heeds it
    misplaced: float = 0.0  # of its slips in an edit: those in the path and not in the old text

    def at_effort(self, level: str) -> Habits:
        """The same task the short way or the long way; without a level as the habits say."""
        if level == "low":
            short = replace(self, think=0.0, look=0.0, check=0.0, report=0.0, verify=0.0)
            return replace(short, test_first=0.0, test_after=0.0)
        return replace(self, think=1.0, verify=1.0) if level == "high" else self


def reference(task: Task, seed: int = 0, habits: Habits | None = None) -> list[Assistant]:
    """Reads, edits until the workspace is as the solution has it, perhaps checks, and finishes. Follows the seed."""
    habits = habits or Habits()
    rng = random.Random(f"reference/{task.name}/{seed}")
    kind = kind_of(task)
    if kind.reads_answer and (known := kind.reference(task)) is not None:
        return _answer(kind.accepted_answers(task), known.answer, rng, habits)
    if task.facts.rung:
        return ladder_reference(task, rng, edits_between, habits)
    changed = [path for path in task.solution if task.workspace.get(path) != task.solution[path]]
    if not changed:
        raise EtudeError(
            f"task {task.name} has no solution/files that differ from its workspace, so there is no reference to "
            "play: name another --policy, or let `etude tasks check` run its solution/solve.sh"
        )
    asked = _ask(task, rng, habits)
    rng.shuffle(changed)
    there = [path for path in changed if path in task.workspace]
    names, done = kind.describe(task)
    # The draw only where the habit is there: other recipes keep the demonstrations that they had.
    if len(there) > 1 and habits.one_by_one and rng.random() < habits.one_by_one:
        return [*asked, *_one_by_one(task, changed, rng, habits, done)]
    # Of `kata_trails`: each file says which one comes next, so they are read one after the other.
    trail = task.facts.parameters.get("trail", [])
    passed = [_turn(rng, habits, "Read the file.", Call("read", {"path": path})) for path in trail]
    turns = [*asked, *_look(task, there, rng, habits), *passed, *_read(there, rng, habits)]
    edits = [*_moves(task), *(call for path in changed for call in _changes(task, path, rng, habits))]
    end = Call("finish", {"message": done} if rng.random() < habits.report else {})
    check = (
        [Call("run", {"command": TEST_COMMAND[task.facts.suite or "unittest"]})] if rng.random() < habits.check else []
    )
    verified = _verify(changed, rng, habits)
    if rng.random() < habits.together / 2 and not check and not verified:
        return [*turns, _turn(rng, habits, f"Write {names}.", *edits, end)]
    for number, call in enumerate(edits):
        if rng.random() < habits.slip and call.name == "edit":
            slip = _misplaced(call, task, rng, habits) or _misread(call, task, rng)
            turns.append(_turn(rng, habits, f"Write {names}.", slip))
            what = "old text" if slip.arguments["path"] == call.arguments["path"] else "path"
            turns.append(Assistant(f"The {what} was wrong.", calls=(call,)))
        elif number and rng.random() < habits.together:
            turns[-1] = Assistant(turns[-1].thinking, calls=(*turns[-1].calls, call))
        else:
            turns.append(_turn(rng, habits, f"Write {names}.", call))
        if habits.again and rng.random() < habits.again and _fails_again(call):
            turns.append(Assistant(calls=(call,)))
    if check:
        turns.append(_turn(rng, habits, "Run the tests.", *check))
    return [*turns, *verified, _turn(rng, habits, "Done.", end)]


def _ask(task: Task, rng: random.Random, habits: Habits) -> list[Assistant]:
    """Asks the tracker for the issue that the task names: who knows what is in it without asking shows how to guess."""
    backend, named = read_backend(task), ISSUE.search(task.instruction)
    if backend is None or named is None or int(named[1]) not in (issue.number for issue in backend.issues):
        return []
    return [_turn(rng, habits, "Ask for the issue.", Call("service", {"name": "issues", "query": named[1]}))]


def _one_by_one(task: Task, changed: Sequence[str], rng: random.Random, habits: Habits, done: str) -> list[Assistant]:
    """Each file read, changed and perhaps read again before the next, in the order in which the task names them."""
    named = [name.partition(":")[0] for name in task.facts.deleted]
    ordered = sorted(changed, key=lambda path: named.index(path) if path in named else len(named))
    turns: list[Assistant] = []
    for path in ordered:
        if path in task.workspace:
            turns.append(_turn(rng, habits, "Read the file.", Call("read", {"path": path})))
        turns.append(_turn(rng, habits, f"Change {path}.", *_changes(task, path, rng, habits)))
        turns += _verify([path], rng, habits)
    end = Call("finish", {"message": done} if rng.random() < habits.report else {})
    return [*turns, _turn(rng, habits, "Done.", end)]


def _verify(paths: Sequence[str], rng: random.Random, habits: Habits) -> list[Assistant]:
    if not habits.verify or rng.random() >= habits.verify:
        return []
    return [_turn(rng, habits, "See whether the change is right.", Call("read", {"path": path})) for path in paths]


def _answer(accepted: Sequence[str], answer: str, rng: random.Random, habits: Habits) -> list[Assistant]:
    """Reads the files that the answer is about, if it is about any, and says it."""
    paths = list(dict.fromkeys(path for path, colon, _ in (name.partition(":") for name in accepted) if colon))
    end = Call("finish", {"message": answer})
    return [*_read(paths, rng, habits), _turn(rng, habits, "That is the answer.", end)]


def null(task: Task, seed: int = 0) -> list[Assistant]:
    """Finishes at once."""
    return [Assistant(calls=(Call("finish"),))]


def stub(task: Task, seed: int = 0) -> list[Assistant]:
    """Writes what somebody would who has no idea: constants into deleted functions, entries that say nothing."""
    files = kind_of(task).stub(task, random.Random(f"stub/{task.name}/{seed}"))
    turns = [
        Assistant(calls=(Call("write", {"path": path, "text": (data or b"").decode("utf-8", "surrogateescape")}),))
        for path, data in files.items()
    ]
    return [*turns, Assistant(calls=(Call("finish", {"message": "Implemented."}),))]


SCRIPTS: dict[str, Script] = {"reference": reference, "null": null, "stub": stub}


def edits_between(before: str, after: str) -> list[tuple[str, str]]:
    """Pairs of old and new text that, applied in order, turn one text into another; each old text is there once."""
    old_lines, new_lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, old_lines, new_lines, autojunk=False)
    edits: list[tuple[str, str]] = []
    now = before
    shift = 0  # lines that earlier edits have added
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind == "equal":
            continue
        lines = now.splitlines(keepends=True)
        start, end, new = i + shift, j + shift, "".join(new_lines[k:m])
        # Widened line by line until it is there once: the edit tool takes nothing else.
        while not _is_once(old := "".join(lines[start:end]), now):
            if start == 0 and end == len(lines):
                break
            if start > 0:
                start -= 1
                new = lines[start] + new
            else:
                new += lines[end]
                end += 1
        edits.append(_without_margins(old, new, now))
        now = "".join([*lines[:start], new, *lines[end:]])
        shift += (m - k) - (j - i)
    return edits


def _without_margins(old: str, new: str, text: str) -> tuple[str, str]:
    """Shorter: without the first line's indentation and the last line's end, where both have them."""
    lead = old[: len(old) - len(old.lstrip(" "))]
    if new.startswith(lead) and _is_once(old[len(lead) :], text):
        old, new = old[len(lead) :], new[len(lead) :]
    if old.endswith("\n") and new.endswith("\n") and _is_once(old[:-1], text):
        old, new = old[:-1], new[:-1]
    return old, new


def _is_once(piece: str, text: str) -> bool:
    """Whether a piece is in a text in one place only, overlapping places counted, as the edit tool counts them."""
    return bool(piece) and text.find(piece) == text.rfind(piece) >= 0


def _look(task: Task, paths: Sequence[str], rng: random.Random, habits: Habits) -> Iterator[Assistant]:
    if rng.random() >= habits.look or not paths:
        return
    symbol = task.facts.deleted[0].partition(":")[2] if task.facts.deleted else "NotImplementedError"
    folder = paths[0].rpartition("/")[0]
    call = rng.choice(
        [
            Call("grep", {"pattern": f"def {symbol}"}),
            Call("grep", {"pattern": symbol, "path": folder or "."}),
            Call("list", {"path": folder} if folder else {}),
        ]
    )
    yield _turn(rng, habits, "See what is there.", call)


def _read(paths: Sequence[str], rng: random.Random, habits: Habits) -> Iterator[Assistant]:
    calls = [Call("read", {"path": path}) for path in paths]
    if calls and rng.random() < habits.slip:
        wrong = calls[0].arguments["path"].rpartition("/")[2]
        if wrong != calls[0].arguments["path"]:
            yield _turn(rng, habits, "Read the file.", Call("read", {"path": wrong}))
    if len(calls) > 1 and rng.random() < habits.together * 2:
        yield _turn(rng, habits, "Read the files.", *calls)
    else:
        for call in calls:
            yield _turn(rng, habits, "Read the file.", call)


def _moves(task: Task) -> Iterator[Call]:
    """Files that go: to where the solution wants them, or away."""
    moved = kind_of(task).moved_files(task)
    for path in task.facts.removed:
        target = next((new for new, old in moved.items() if old == path), None)
        words = ["rm", "-f", "--", path] if target is None else ["mv", "--", path, target]
        folder = (target or "").rpartition("/")[0]
        there = not folder or any(other.startswith(f"{folder}/") for other in task.workspace)
        make = "" if there else f"{shlex.join(['mkdir', '-p', '--', folder])} && "
        yield Call("run", {"command": make + shlex.join(words)})


def _changes(task: Task, path: str, rng: random.Random, habits: Habits) -> Iterator[Call]:
    after, before = task.solution.text(path), kind_of(task).moved_files(task).get(path, path)
    if before not in task.workspace or (before == path and rng.random() < habits.whole):
        yield Call("write", {"path": path, "text": after})
        return
    for old, new in edits_between(task.workspace.text(before), after):
        yield Call("edit", {"path": path, "old": old, "new": new})


def _misplaced(call: Call, task: Task, rng: random.Random, habits: Habits) -> Call | None:
    """An edit of a file that is not there: the path without its folder. None where that slip is not made."""
    name = call.arguments["path"].rpartition("/")[2]
    # The draw only where the habit is there: other recipes keep the demonstrations that they had.
    if not habits.misplaced or rng.random() >= habits.misplaced or name in task.workspace:
        return None
    return Call("edit", {**call.arguments, "path": name})


def _misread(call: Call, task: Task, rng: random.Random) -> Call:
    """An edit whose old text is not what the file has."""
    path = call.arguments["path"]
    old, text = call.arguments["old"], task.workspace.text(kind_of(task).moved_files(task).get(path, path))
    wrong = [old.replace("NotImplementedError", "NotImplemented()"), old.replace(" ", "  ", 1), "pass  # later"]
    return Call("edit", {**call.arguments, "old": rng.choice([one for one in wrong if one not in text])})


def _fails_again(call: Call) -> bool:
    """Whether an edit that worked fails when it is made once more: its old text is then gone."""
    return call.name == "edit" and call.arguments["old"] not in call.arguments["new"]


def _turn(rng: random.Random, habits: Habits, thought: str, *calls: Call) -> Assistant:
    return Assistant(thought if rng.random() < habits.think else "", calls=calls)

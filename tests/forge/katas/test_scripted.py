"""Scripted policies: the reference solves every kata through the tools, the null and the stub none."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Context, Message, Sampling, ToolResult, User
from etude.forge.katas.task_source import choose_families, katas
from etude.harness.text_turns import read_turn
from etude.policies.scripted import Habits, Scripted, edits_between, null, reference, scripted, stub
from etude.tasks.format.function_bodies import replace_bodies
from etude.tasks.format.task import Task
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer


def act(task: Task, turns: Sequence[Assistant]) -> tuple[dict[str, bytes], list[str]]:
    """The workspace after a script, and the errors it ran into. Edits are exact and unique, as the tool's are."""
    files = {path: task.workspace.text(path) for path in task.workspace}
    errors: list[str] = []
    for turn in turns:
        for call in turn.calls:
            path = call.arguments.get("path", "")
            match call.name:
                case "edit":
                    old = call.arguments["old"]
                    if files[path].count(old) == 1:
                        files[path] = files[path].replace(old, call.arguments["new"])
                    else:
                        errors.append(f"old is {files[path].count(old)} times in {path}")
                case "write":
                    files[path] = call.arguments["text"]
                case "read" if path not in files:
                    errors.append(f"no file {path}")
    return {path: text.encode() for path, text in files.items()}, errors


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    known = len(choose_families("train"))
    return [*katas("train", 2 * known, seed=6), *katas("held_out", known, seed=6), *katas("unseen", 10, seed=6)]


def test_the_reference_leaves_the_solution_behind(tasks):
    for task in tasks:
        for seed in range(4):
            turns = reference(task, seed)
            files, _ = act(task, turns)
            assert {path: files[path] for path in task.solution} == dict(task.solution), task.name
            assert {path: data for path, data in files.items() if path not in task.solution} == {
                path: task.workspace[path] for path in task.workspace if path not in task.solution
            }
            assert turns[-1].calls[-1].name == "finish"


def test_the_reference_reads_every_file_before_it_edits_it(tasks):
    for task in tasks:
        read: set[str] = set()
        for turn in reference(task, 1):
            for call in turn.calls:
                if call.name == "read":
                    read.add(call.arguments["path"])
                if call.name == "edit":
                    assert call.arguments["path"] in read


def test_the_reference_varies_as_people_do(tasks):
    seen: Counter[str] = Counter()
    for task in tasks * 3:
        for seed in range(2):
            turns = reference(task, seed)
            names = [call.name for turn in turns for call in turn.calls]
            seen.update(set(names))
            seen["slips"] += bool(act(task, turns)[1])
            seen["thinks"] += any(turn.thinking for turn in turns)
            seen["several calls"] += any(len(turn.calls) > 1 for turn in turns)
            seen["scripts"] += 1
    assert all(seen[name] for name in ("list", "grep", "write", "run", "slips", "several calls"))
    assert 0.03 < seen["slips"] / seen["scripts"] < 0.3  # and every one of them was mended: see above
    assert seen["thinks"] / seen["scripts"] > 0.5
    assert [reference(task, 3) for task in tasks] == [reference(task, 3) for task in tasks]


def test_without_habits_the_reference_is_read_edit_finish(tasks):
    plain = Habits(0, 0, 0, 0, 0, 0, 0)
    for task in tasks:
        names = [call.name for turn in reference(task, 0, plain) for call in turn.calls]
        files = len(task.solution)
        assert names == ["read"] * files + ["edit"] * files + ["finish"], task.name


def test_null_and_stub_solve_nothing(tasks, run_all):
    assert null(tasks[0]) == [Assistant(calls=(Call("finish"),))]
    jobs = [(task, act(task, stub(task, seed))[0]) for task in tasks for seed in range(2)]
    for (task, _), passed in zip(jobs, run_all(jobs, quick=True), strict=True):
        assert not all(passed.values()), task.name


def test_a_script_is_said_turn_by_turn_as_text_or_as_ids():
    task = next(katas("train", 1, seed=4, levels=[2]))
    turns = reference(task, 2)
    dialect = Native(Tokenizer.train([task.workspace.text(path) for path in task.workspace] * 5, 400))

    async def play(policy: Scripted, limit: int) -> list[object]:
        messages: list[Message] = [User(task.instruction)]
        said: list[object] = []
        for turn in [*turns, None]:
            sample = await policy.sample(Context(tuple(messages)), Sampling(max_tokens=limit))
            said.append(read_turn(sample.text) if sample.ids is None else dialect.parse_turn(sample.ids))
            if turn is not None:
                messages += [turn, *(ToolResult(call.name, "ok") for call in turn.calls)]
        return said

    done = Assistant(final="Done.")
    assert asyncio.run(play(scripted("reference", task, 2), 9)) == [*turns, done]
    assert asyncio.run(play(scripted("reference", task, 2, dialect), 4096)) == [*turns, done]
    cut = asyncio.run(Scripted(turns, dialect).sample(Context((User("x"),)), Sampling(max_tokens=3)))
    assert cut.stop == "length" and cut.ids is not None and len(cut.ids) == 3


def test_unknown_scripts_and_tasks_without_a_solution_are_refused():
    task = next(katas("train", 1))
    with pytest.raises(EtudeError, match="no scripted policy is called 'oracle'"):
        scripted("oracle", task)
    with pytest.raises(EtudeError, match="has no solution/files"):
        reference(Task("bare", "do it"))


def test_edits_turn_one_text_into_another_and_each_is_unique():
    rng = random.Random(0)
    lines = ["a\n", "b\n", "    c\n", "    d\n", "e\n", "\n"]
    for _ in range(400):
        before = "".join(rng.choice(lines) for _ in range(rng.randint(0, 9)))
        after = "".join(rng.choice(lines) for _ in range(rng.randint(0, 9)))
        text = before
        if not before:
            continue  # an empty file is written, not edited
        for old, new in edits_between(before, after):
            assert old and text.find(old) == text.rfind(old) >= 0
            text = text.replace(old, new, 1)
        assert text == after


def test_bodies_are_replaced_and_nothing_else_is_touched():
    source = (
        'X = 1\n\n\ndef f(a):\n    """Doc.\n\n    More.\n    """\n    return a\n\n\nclass C:\n    def g(self): pass\n'
    )
    assert replace_bodies(source, {"f": "b = 1\nreturn b"}) == source.replace("return a\n", "b = 1\n    return b\n")
    only_doc = 'def h():\n    """Doc."""\n\n\ny = 2\n'
    assert replace_bodies(only_doc, {"h": "pass"}) == 'def h():\n    """Doc."""\n    pass\n\n\ny = 2\n'
    with pytest.raises(EtudeError, match="there is no function z"):
        replace_bodies(source, {"z": "pass"})

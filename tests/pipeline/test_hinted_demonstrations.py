"""Demonstrations of heeding a hint: the failed call is gone, the hint of feedback stands above the right one."""

from __future__ import annotations

from etude.core.policy import Assistant, Call, Message, ToolResult, User
from etude.forge.katas.task_source import katas
from etude.harness.trajectory import MessageRecord, Trajectory
from etude.pipeline.hinted_demonstrations import habits_for, with_hints
from etude.policies.scripted import Habits, reference

MISSED = "error: old is not in a.py; nearest, line 2:\ndef add(a, b):\n    return a - b"


def record(message: Message) -> MessageRecord:
    error = isinstance(message, ToolResult) and message.text.startswith("error: ")
    return MessageRecord(message, error="UnexpectedEnvironment" if error else None)


def edit(old: str) -> Call:
    return Call("edit", {"path": "a.py", "old": old, "new": "a + b"})


def test_the_failed_turn_is_replaced_by_its_hint_above_the_right_one() -> None:
    right = Assistant("The old text was wrong.", calls=(edit("a - b"),))
    rest = [ToolResult("edit", "ok"), Assistant(calls=(Call("finish"),))]
    start = [User("Mend add."), Assistant(calls=(Call("read", {"path": "a.py"}),)), ToolResult("read", "def add...")]
    slip = [Assistant("Write add.", calls=(edit("a * b"),)), ToolResult("edit", MISSED)]
    said = Trajectory(tools=("read", "edit"), entries=[record(m) for m in [*start, *slip, right, *rest]])
    found = with_hints(said)
    hint = found[3]
    assert isinstance(hint, User) and hint.text == "Hint: old is: a - b"  # what worked, to the letter
    assert found == (*start, hint, Assistant("Write add.", calls=(edit("a - b"),)), *rest)


def test_a_turn_of_which_something_worked_stays() -> None:
    both = Assistant(calls=(edit("a - b"), edit("a * b")))
    messages: list[Message] = [User("x"), both, ToolResult("edit", "ok"), ToolResult("edit", MISSED)]
    said = Trajectory(tools=("edit",), entries=[record(m) for m in messages])
    assert with_hints(said) == tuple(messages)


def test_as_many_demonstrations_slip_as_the_habit_says() -> None:
    habits = Habits(hint=0.3, slip=0.0, together=0.0)
    tasks = list(katas("train", 60, seed=3))
    own = [habits_for(task, 0, habits) for task in tasks]
    assert 8 <= sum(its.hint > 0 for its in own) <= 28
    for task, its in zip(tasks, own, strict=True):
        assert its.slip == (1.0 if its.hint else 0.0)
        if its.hint:
            assert len(reference(task, 0, its)) > len(reference(task, 0, habits))


def test_a_hint_about_a_path_stands_above_an_edit_too() -> None:
    task = next(katas("train", 1, seed=3, levels=[1]))
    habits = Habits(slip=1.0, misplaced=1.0, together=0.0, look=0.0, check=0.0, think=0.0, report=0.0, whole=0.0)
    turns = reference(task, 0, habits)
    wrong, right = [turn.calls[0] for turn in turns if turn.calls[0].name == "edit"]
    assert right.arguments["path"].endswith(f"/{wrong.arguments['path']}")
    missed = ToolResult("edit", f"error: {wrong.arguments['path']}: no such file or directory")
    said = [User(f"Mend {right.arguments['path']}."), Assistant(calls=(wrong,)), missed, Assistant(calls=(right,))]
    found = with_hints(Trajectory(tools=("edit",), entries=[record(message) for message in said]))
    assert found == (said[0], User(f"Hint: path is: {right.arguments['path']}"), said[3])


def test_an_edit_that_worked_before_is_told_to_go_on_and_not_to_edit_a_line() -> None:
    task = next(katas("train", 1, seed=3, levels=[1]))
    habits = habits_for(task, 0, Habits(hint=1.0, again=1.0, together=0.0, look=0.0, check=0.0, think=0.0))
    plain = reference(task, 0, Habits(slip=0.0, together=0.0, look=0.0, check=0.0, think=0.0, report=0.0, whole=0.0))
    edits = [call for turn in plain for call in turn.calls if call.name == "edit"]
    assert habits.slip == habits.again == 1.0 and len(edits) == 1
    again = Assistant(calls=(edits[0],))
    text = [
        ToolResult("edit", "ok"),
        again,
        ToolResult("edit", f"error: old is not in a.py; {MISSED.partition(';')[2]}"),
    ]
    end = Assistant(calls=(Call("finish"),))
    said = Trajectory(tools=("edit",), entries=[record(m) for m in [User("x"), again, *text, end]])
    hint = f"Hint: {edits[0].arguments['path']} is changed already; go on."
    assert with_hints(said) == (User("x"), again, text[0], User(hint), end)

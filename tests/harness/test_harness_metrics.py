"""Counting calls, errors and turns."""

from __future__ import annotations

from etude.core.policy import Assistant, Call, ToolResult, User
from etude.harness.metrics import measure
from etude.harness.trajectory import MessageRecord, Trajectory


def test_calls_errors_and_turns_are_counted_by_tool_and_class() -> None:
    one = Trajectory(
        tools=("read", "run", "finish"),
        stop="finish",
        entries=[
            MessageRecord(User("x")),
            MessageRecord(Assistant(calls=(Call("read"), Call("run"), Call("nope"))), stop="stop"),
            MessageRecord(ToolResult("read", "y"), seconds=1.0),
            MessageRecord(ToolResult("run", ""), error="Timeout", seconds=2.0),
            MessageRecord(ToolResult("nope", ""), error="InvalidArguments"),
            MessageRecord(Assistant(calls=(Call("read"),)), error="InvalidArguments", stop="stop"),
            MessageRecord(ToolResult("", "error"), error="InvalidArguments"),
            MessageRecord(Assistant(), error="InvalidArguments", stop="length"),
            MessageRecord(ToolResult("", "error"), error="InvalidArguments"),
            MessageRecord(Assistant(calls=(Call("read"),)), stop="stop"),
            MessageRecord(ToolResult("read", ""), error="UnexpectedEnvironment"),
            MessageRecord(Assistant(calls=(Call("finish"),)), stop="stop"),
        ],
    )
    metrics = measure([one, Trajectory(stop="time")])
    assert {name: counts.calls for name, counts in metrics.tools.items()} == {"read": 2, "run": 1, "": 1, "finish": 1}
    assert metrics.tools["read"].errors == {"UnexpectedEnvironment": 1}
    assert metrics.tools["read"].reliability == 1.0
    assert (metrics.tools["run"].reliability, metrics.tools["run"].seconds) == (0.0, 2.0)
    assert (metrics.turns, metrics.calling_turns, metrics.parallel_turns) == (5, 3, 1)
    assert (metrics.malformed_turns, metrics.cut_turns) == (1, 1)
    assert metrics.parallel_rate == 1 / 3 and metrics.total.reliability == 0.8
    assert metrics.stops == {"finish": 1, "time": 1}
    flat = metrics.flat()
    assert flat["run.Timeout"] == 1 and flat["unknown.InvalidArguments"] == 1 and flat["finish.reliability"] == 1


def test_nothing_to_count_is_nothing_wrong() -> None:
    metrics = measure([])
    assert metrics.parallel_rate == 0 and metrics.total.reliability == 1

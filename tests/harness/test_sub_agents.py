"""Sub-agents: a context of its own, the rollout's limits, and tokens that are trained like all others."""

from __future__ import annotations

from typing import Any

import pytest

from etude.core.policy import Assistant, Call, System, ToolResult, User, Version
from etude.core.settings import AgentLimits
from etude.harness.failures import PolicyFailure
from etude.harness.metrics import measure
from etude.harness.tools.table import build_tools
from etude.harness.trajectory_files import load_trajectory, save_trajectory

TOOLS = [{"use": name} for name in ("read", "edit", "agent", "finish")]


def steps(call: Any) -> list[Assistant]:
    """The agent asks, the sub-agent reads and answers, the agent edits and finishes."""
    return [
        Assistant(calls=(Call("agent", {"task": "Where is add?"}), Call("read", {"path": "b.py"}))),
        call("read", path="a.py"),
        Assistant(thinking="it is there", final="add is in a.py"),
        call("edit", path="a.py", old="a - b", new="a + b"),
        call("finish", message="done"),
    ]


@pytest.fixture
def files(sandbox: Any) -> Any:
    (sandbox.root / "a.py").write_text("def add(a, b):\n    return a - b\n")
    (sandbox.root / "b.py").write_text("x\n")
    return sandbox


def test_a_sub_agent_has_a_segment_and_a_context_of_its_own(
    rollouts: Any, script: Any, say_call: Any, files: Any, tmp_path: Any
) -> None:
    policy = script(rollouts.dialect, steps(say_call), Version(0, 3))
    tools = build_tools(TOOLS)
    trajectory = rollouts.play(policy, tools=tools, system="Work.")
    assert trajectory.stop == "finish" and trajectory.answer == "done"
    assert (files.root / "a.py").read_text() == "def add(a, b):\n    return a + b\n"
    first, second = trajectory.segments
    assert (second.cause, second.parent.segment) == ("sub-agent", 0)
    # It left where the agent's turn with the call ends, and begins anew.
    assert first.ids[: second.parent.offset] == list(policy.contexts[0].ids) + list(
        first.ids[len(policy.contexts[0].ids) : second.parent.offset]
    )
    assert policy.contexts[1].messages == (System("Work."), User("Where is add?"))
    assert [e.message for e in trajectory.entries][:4] == [
        System("Work."),
        User("Mend add."),
        steps(say_call)[0],
        ToolResult("agent", "add is in a.py"),
    ]
    # Every token of it is trained on, and it renders as one conversation.
    assert trajectory.trainable and second.trained().sum() == sum(o == "sampled" for o in second.origins) > 0
    mine, other = trajectory.conversations
    assert other[:2] == (System("Work."), User("Where is add?")) and other[-1] == steps(say_call)[2]
    assert mine[-1] == steps(say_call)[4]
    counts = measure([trajectory]).tools
    assert {name: count.calls for name, count in counts.items()} == {"agent": 1, "read": 2, "edit": 1, "finish": 1}
    assert (trajectory.effort.turns, len(trajectory.turns), trajectory.effort.calls) == (5, 3, 5)
    save_trajectory(trajectory, tmp_path / "saved")
    loaded = load_trajectory(tmp_path / "saved")
    assert loaded.segments[1].parent == second.parent and loaded.entries == trajectory.entries


def test_a_policy_of_text_has_sub_agents_too(rollouts: Any, script: Any, say_call: Any, files: Any) -> None:
    from etude.core.policy import Sample
    from etude.harness.text_turns import write_turn

    texts = [Sample(write_turn(turn), "stop") for turn in steps(say_call)]
    trajectory = rollouts.play(script(None, texts), tools=build_tools(TOOLS), dialect=None)
    assert trajectory.answer == "done" and trajectory.segments == []
    assert [entry.segment for entry in trajectory.entries if entry.purpose == "sub-agent"] == [1]


def test_limits_are_those_of_the_rollout(rollouts: Any, script: Any, say_call: Any, files: Any) -> None:
    asks = say_call("agent", task="Look around.")
    looks = say_call("read", path="a.py")
    policy = script(rollouts.dialect, [asks, looks, looks, asks, Assistant(final="enough")], Version(0, 0))
    trajectory = rollouts.play(policy, tools=build_tools(TOOLS), limits=AgentLimits(turns=5))
    results = [e.message.text for e in trajectory.entries if isinstance(e.message, ToolResult) and e.segment == 0]
    assert results[0] == "[it said nothing]\n[it was stopped: turns]" or "[it was stopped: turns]" in results[0]
    # Three of five turns for the first one, one of them kept back; then only the agent's own last turn is left.
    assert len(policy.contexts) == 5 and trajectory.stop in ("turns", "final")


def test_a_sub_agent_cannot_call_another_and_its_prompt_must_fit(
    rollouts: Any, script: Any, say_call: Any, files: Any
) -> None:
    asks, end = say_call("agent", task="Go deeper."), Assistant(final="no")
    trajectory = rollouts.play(script(rollouts.dialect, [asks, asks, end, end]), tools=build_tools(TOOLS))
    errors = [entry.error for entry in trajectory.entries if isinstance(entry.message, ToolResult)]
    assert errors == [None, "Unavailable"]  # the agent's own result comes first, its sub-agent's behind it
    long = say_call("agent", task="word " * 400)
    limits = AgentLimits(context_tokens=1200)
    trajectory = rollouts.play(script(rollouts.dialect, [long, end]), tools=build_tools(TOOLS), limits=limits)
    [entry] = [entry for entry in trajectory.entries if isinstance(entry.message, ToolResult)] or [None]
    assert entry is None or entry.error in ("InvalidArguments", None)
    assert trajectory.stop in ("final", "context")


def test_a_policy_that_fails_in_a_sub_agent_fails_the_rollout(
    rollouts: Any, script: Any, say_call: Any, files: Any
) -> None:
    policy = script(rollouts.dialect, [say_call("agent", task="Look."), RuntimeError("gone")])
    with pytest.raises(PolicyFailure, match="gone") as caught:
        rollouts.play(policy, tools=build_tools(TOOLS))
    assert caught.value.trajectory.tools == ("read", "edit", "agent", "finish")


def test_the_list_of_steps_is_each_agents_own(rollouts: Any, script: Any, say_call: Any, files: Any) -> None:
    tools = build_tools([{"use": "todo"}, {"use": "agent"}])
    turns = [
        say_call("todo", items="[ ] mine"),
        say_call("agent", task="Look."),
        say_call("todo", items="[x] other\n[x] more"),
        Assistant(final="ok"),
        Assistant(final="done"),
    ]
    trajectory = rollouts.play(script(rollouts.dialect, turns), tools=tools)
    assert trajectory.stop == "final" and trajectory.answer == "done"

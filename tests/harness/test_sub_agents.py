"""Sub-agents: a context of its own, the rollout's limits, and tokens that are trained like all others."""

from __future__ import annotations

from typing import Any

import pytest

from etude.core.policy import Assistant, Call, System, ToolResult, User, Version
from etude.core.settings import AgentLimits, SummarySettings
from etude.harness.failures import PolicyFailure, SandboxLost
from etude.harness.metrics import measure
from etude.harness.tools.table import build_tools
from etude.harness.trajectory_files import load_trajectory, save_trajectory
from etude.sandbox.base import SandboxFailure

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
    turn = list(rollouts.dialect.turn_ids(steps(say_call)[0], policy.contexts[0].messages))
    assert first.ids[: second.parent.offset] == [*policy.contexts[0].ids, *turn]
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
    # Of five turns one is the agent's, three are its sub-agent's, and one is kept back for reading the answer.
    for last, error, stop in (
        (Assistant(final="enough"), [None], "final"),
        (asks, [None, "InvalidArguments"], "turns"),
    ):
        policy = script(rollouts.dialect, [asks, looks, looks, looks, last], Version(0, 0))
        trajectory = rollouts.play(policy, tools=build_tools(TOOLS), limits=AgentLimits(turns=5))
        own = [e for e in trajectory.entries if isinstance(e.message, ToolResult) and e.segment == 0]
        assert own[0].message.text == "[it said nothing]\n[it was stopped: turns]"
        assert [entry.error for entry in own] == error
        assert (len(policy.contexts), trajectory.stop) == (5, stop)


def test_tokens_of_a_sub_agent_count_for_the_rollout(rollouts: Any, script: Any, say_call: Any, files: Any) -> None:
    asks, words = say_call("agent", task="Look."), Assistant(final="add is in a.py and so on")
    turns = [asks, words, words]
    sizes = [len(list(rollouts.dialect.turn_ids(turn, ()))) for turn in turns]
    policy = script(rollouts.dialect, turns, Version(0, 0))
    limits = AgentLimits(sampled_tokens=sum(sizes) - 2)
    trajectory = rollouts.play(policy, tools=build_tools(TOOLS), limits=limits)
    assert [each.max_tokens for each in policy.samplings] == [
        sum(sizes) - 2,
        sum(sizes) - 3 - sizes[0],  # one token is kept back
        sum(sizes) - 2 - sizes[0] - sizes[1],
    ]
    assert (trajectory.stop, trajectory.sampled_tokens) == ("tokens", limits.sampled_tokens)


def test_text_of_a_sub_agent_counts_for_the_rollout(rollouts: Any, script: Any, say_call: Any, files: Any) -> None:
    from etude.core.policy import Sample
    from etude.harness.text_turns import write_turn

    asks, words = say_call("agent", task="Look."), Assistant(final="it is there " * 100)
    texts = [Sample(write_turn(turn), "stop") for turn in (asks, words, asks, words, asks, Assistant(final="enough"))]
    policy, tools = script(None, texts), build_tools([{"use": "agent", "max_chars": 20}])
    limits = AgentLimits(context_tokens=400, rollout_tokens=1000)
    trajectory = rollouts.play(
        policy, tools=tools, limits=limits, dialect=None, summary=SummarySettings(use="trained", max_tokens=20)
    )
    own = [e.error for e in trajectory.entries if isinstance(e.message, ToolResult)]
    assert own == [None, None, "InvalidArguments"] and trajectory.answer == "enough"


def test_a_sub_agent_cannot_call_another(rollouts: Any, script: Any, say_call: Any, files: Any) -> None:
    asks, end = say_call("agent", task="Go deeper."), Assistant(final="no")
    trajectory = rollouts.play(script(rollouts.dialect, [asks, asks, end, end]), tools=build_tools(TOOLS))
    errors = [entry.error for entry in trajectory.entries if isinstance(entry.message, ToolResult)]
    assert errors == [None, "Unavailable"]  # the agent's own result comes first, its sub-agent's behind it


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


def test_a_sub_agent_that_brings_its_sandbox_down_is_not_forgotten(
    rollouts: Any, script: Any, say_call: Any, files: Any
) -> None:
    looks = say_call("read", path="a.py")

    def breaks(context: Any, sampling: Any) -> Any:
        files.failure = SandboxFailure("died", "gone")
        return policy.say(tuple(rollouts.dialect.turn_ids(looks, context.messages)))

    policy = script(rollouts.dialect, [say_call("agent", task="Look."), looks, breaks], Version(0, 0))
    with pytest.raises(SandboxLost) as caught:
        rollouts.play(policy, tools=build_tools(TOOLS))
    found = caught.value.trajectory
    # Its turns are audited and its tokens learn of the score, as if the agent itself had done it.
    assert [segment.cause for segment in found.segments] == ["start", "sub-agent"] and found.trainable
    assert [e.message.calls[0].name for e in found.entries if isinstance(e.message, Assistant)] == [
        "agent",
        "read",
        "read",
    ]


def test_sub_agents_share_what_runs_in_the_background(rollouts: Any, script: Any, say_call: Any, files: Any) -> None:
    class Running:
        running = True

        async def close_stdin(self) -> None: ...

        async def wait(self, seconds: float) -> None: ...

        def output(self) -> tuple[bytes, bytes]:
            return b"", b""

    async def spawn(*argv: Any, **options: Any) -> Running:
        return Running()

    files.spawn = spawn
    asks, starts = say_call("agent", task="Start it."), say_call("background", command="sleep 9")
    end = Assistant(final="ok")
    policy = script(rollouts.dialect, [asks, starts, end, asks, starts, end, starts, end])
    tools = build_tools([{"use": "background", "max_running": 1}, {"use": "agent"}])
    trajectory = rollouts.play(policy, tools=tools)
    texts = [e.message.text for e in trajectory.entries if isinstance(e.message, ToolResult)]
    refused = "error: 1 commands run already; stop one"
    assert texts == ["ok", "ok", refused, "[1: running]", refused]


def test_two_sub_agents_of_one_turn_have_different_seeds(rollouts: Any, script: Any, files: Any) -> None:
    asks = Assistant(calls=(Call("agent", {"task": "Look."}),) * 2)
    policy = script(rollouts.dialect, [asks, *[Assistant(final="ok")] * 3])
    rollouts.play(policy, tools=build_tools(TOOLS))
    assert len({each.seed for each in policy.samplings}) == 4

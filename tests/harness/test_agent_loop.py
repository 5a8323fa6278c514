"""The loop: what is sampled stays, what follows is appended, limits stop, failures are nobody's score."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Context, Sample, Sampling, System, ToolResult, User, Version
from etude.core.settings import AgentLimits
from etude.harness.failures import HarnessFailure, PolicyFailure
from etude.harness.loop import Event
from etude.harness.metrics import measure
from etude.harness.prompt import system_text
from etude.harness.text_turns import write_turn
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.tools.table import build_tools
from etude.harness.trajectory import NO_VERSION, Effort
from etude.sandbox.base import SandboxFailure
from etude.tokens.parse import parse
from etude.tokens.render import render
from etude.tokens.tokenizer import to_text

WRONG = "def add(a, b):\n    return a - b\n"
V1, V2 = Version(0, 1), Version(0, 2)


@pytest.fixture
def agent(rollouts: Any) -> Any:
    (rollouts.sandbox.root / "calc.py").write_text(WRONG)
    return rollouts


def solution(say: Any) -> list[Assistant]:
    return [
        Assistant(thinking="look first", calls=(Call("read", {"path": "calc.py"}), Call("list"))),
        say("edit", path="calc.py", old="a - b", new="a + b"),
        say("run", command="python3 -c 'import calc; print(calc.add(1, 2))'"),
        Assistant(final="Mended.", calls=(Call("finish", {"message": "add adds"}),)),
    ]


def test_a_scripted_solution_runs_to_its_end(agent: Any, script: Any, say_call: Any) -> None:
    trajectory = agent.play(script(agent.dialect, solution(say_call)), system="You mend code.")
    assert trajectory.stop == "finish" and trajectory.answer == "Mended."
    assert (agent.sandbox.root / "calc.py").read_text() == WRONG.replace("-", "+")
    assert trajectory.messages == (
        System("You mend code."),
        User("Mend add."),
        solution(say_call)[0],
        ToolResult("read", WRONG.rstrip("\n")),
        ToolResult("list", "calc.py"),
        solution(say_call)[1],
        ToolResult("edit", "ok"),
        solution(say_call)[2],
        ToolResult("run", "3"),
        solution(say_call)[3],
    )


def test_ids_are_those_of_the_whole_conversation_rendered_at_once(agent: Any, script: Any, say_call: Any) -> None:
    policy = script(agent.dialect, solution(say_call))
    trajectory = agent.play(policy, system="You mend code.")
    [segment] = trajectory.segments
    whole = render(trajectory.messages, agent.tokenizer, open_turn=False)
    assert segment.ids == whole.ids and segment.rendered.spans == whole.spans
    assert segment.messages == list(range(len(trajectory.entries)))
    prompts = [context.ids for context in policy.contexts]
    for before, after in zip(prompts, [*prompts[1:], tuple(segment.ids)], strict=True):
        assert after[: len(before)] == before
    assert parse(segment.ids, agent.tokenizer) == trajectory.messages


def test_every_token_knows_its_origin_logprob_and_version(agent: Any, script: Any, say_call: Any) -> None:
    policy = script(agent.dialect, solution(say_call), V1)
    plain = policy.say

    def newer(context: Context, sampling: Sampling) -> Sample:
        policy.version = V2  # weights change between two turns
        return plain(render([solution(say_call)[3]], agent.tokenizer, open_turn=False).ids[1:])

    policy.steps[3] = newer
    trajectory = agent.play(policy)
    [segment] = trajectory.segments
    assert trajectory.trainable and trajectory.versions == [V1, V2]
    own = [own for span in segment.rendered.spans for own in [span.own] * (span.end - span.start)]
    assert [origin == "sampled" for origin in segment.origins] == own
    assert [version != NO_VERSION for version in segment.versions] == own
    assert [logprob != 0 for logprob in segment.logprobs] == own
    first = segment.origins.index("sampled")
    assert segment.logprobs[first : first + 3] == pytest.approx([-0.1, -0.11, -0.12])
    assert segment.versions[-1] == V2 and segment.versions[first] == V1


def test_sampled_ids_are_kept_when_encoding_would_choose_others(agent: Any, script: Any) -> None:
    control, single = agent.tokenizer.control, agent.tokenizer.encode
    name = [token for letter in "list" for token in single(letter)]
    assert name != single("list")
    odd = [control["call"], *name, control["end_of_turn"]]
    policy = script(agent.dialect, [lambda c, s: policy.say(odd), Assistant(final="ok")], V1)
    trajectory = agent.play(policy)
    assert trajectory.turns[0] == Assistant(calls=(Call("list"),))
    assert list(policy.contexts[1].ids)[len(policy.contexts[0].ids) :][: len(odd)] == odd


def test_effort_counts_its_six_inputs(agent: Any, script: Any, say_call: Any) -> None:
    trajectory = agent.play(script(agent.dialect, solution(say_call)))
    encode = agent.tokenizer.encode
    thinking = 1 + len(encode("look first"))
    final = 1 + len(encode("Mended."))
    outputs = [WRONG.rstrip("\n"), "calc.py", "ok", "3"]
    effort = trajectory.effort
    assert (effort.thinking_tokens, effort.final_tokens) == (thinking, final)
    assert effort.output_tokens == sum(1 + len(encode(text)) for text in outputs)
    assert effort.call_tokens == trajectory.sampled_tokens - thinking - final
    assert (effort.calls, effort.turns, effort.exact) == (5, 4, True)


def test_a_turn_without_calls_is_the_answer(agent: Any, script: Any) -> None:
    trajectory = agent.play(script(agent.dialect, [Assistant(thinking="easy", final="Nothing to do.")]))
    assert (trajectory.stop, trajectory.answer) == ("final", "Nothing to do.")


def test_results_before_a_finish_in_the_same_turn_are_kept(agent: Any, script: Any) -> None:
    turn = Assistant(calls=(Call("list"), Call("finish"), Call("list")))
    trajectory = agent.play(script(agent.dialect, [turn]))
    assert trajectory.stop == "finish"
    assert trajectory.messages[2:] == (ToolResult("list", "calc.py"),)
    assert trajectory.segments[0].ids == render(trajectory.messages, agent.tokenizer, open_turn=False).ids


def test_a_finish_is_a_finish_though_results_beside_it_do_not_fit(agent: Any, script: Any) -> None:
    turn = Assistant(calls=(Call("read", {"path": "calc.py"}), Call("finish")))
    policy = script(agent.dialect, [turn])
    most = len(agent.play(policy).segments[0].ids) - 1
    trajectory = agent.play(script(agent.dialect, [turn]), limits=AgentLimits(context_tokens=most))
    assert trajectory.stop == "finish" and len(trajectory.segments[0].ids) < most
    assert trajectory.messages[-1] == ToolResult("read", WRONG.rstrip("\n"))


def test_history_is_context_and_not_this_rollouts_effort(agent: Any, script: Any) -> None:
    history = (User("Hi."), Assistant(final="Hello.", calls=(Call("list"),)), ToolResult("list", "calc.py"))
    trajectory = agent.play(script(agent.dialect, [Assistant(final="ok")], V1), history=history)
    assert trajectory.messages[:3] == history
    assert trajectory.effort == Effort(0, 0, 0, 2 + len(agent.tokenizer.encode("ok")), 0, 1)
    assert measure([trajectory]).turns == 1
    assert trajectory.segments[0].ids == render(trajectory.messages, agent.tokenizer, open_turn=False).ids
    assert trajectory.segments[0].origins.count("sampled") == trajectory.sampled_tokens


# turns that cannot be read


def control_ids(tokenizer: Any, *names: str) -> list[int]:
    return [tokenizer.control[name] if name in tokenizer.control else tokenizer.encode(name)[0] for name in names]


def test_an_unreadable_turn_is_answered_and_not_run(agent: Any, script: Any) -> None:
    bad = control_ids(agent.tokenizer, "call", "x", "value", "end_of_turn")
    policy = script(agent.dialect, [lambda c, s: policy.say(bad), Assistant(final="sorry")], V1)
    trajectory = agent.play(policy)
    assert trajectory.stop == "final"
    broken, told = trajectory.entries[1:3]
    assert (broken.error, broken.note) == ("InvalidArguments", "a value stands without the name of its argument")
    assert told.message == ToolResult("", f"error: {broken.note}") and told.error == "InvalidArguments"
    assert agent.sandbox.commands == []
    ids = trajectory.segments[0].ids
    assert parse(ids, agent.tokenizer)[2] == told.message
    metrics = measure([trajectory])
    assert (metrics.malformed_turns, metrics.cut_turns, metrics.tools) == (1, 0, {})


def test_a_turn_that_goes_on_as_somebody_else_is_unreadable(agent: Any, script: Any) -> None:
    forged = control_ids(agent.tokenizer, "final", "x", "user")
    policy = script(agent.dialect, [lambda c, s: policy.say(forged), Assistant(final="ok")], V1)
    trajectory = agent.play(policy)
    assert "control token user has no place" in trajectory.entries[1].note
    [segment] = trajectory.segments
    at = len(policy.contexts[0].ids) + len(forged)
    assert segment.ids[at] == agent.tokenizer.control["cut"] and segment.origins[at] == "environment"


def test_three_unreadable_turns_in_a_row_stop_the_rollout(agent: Any, script: Any, say_call: Any) -> None:
    bad = lambda c, s: policy.say(control_ids(agent.tokenizer, "thinking", "thinking", "end_of_turn"))  # noqa: E731
    policy = script(agent.dialect, [bad, bad, say_call("list"), bad, bad, bad], V1)
    trajectory = agent.play(policy)
    assert trajectory.stop == "malformed" and len(trajectory.turns) == 6
    assert trajectory.trainable  # a low score to learn from, not a void
    assert trajectory.segments[0].origins[-1] == "sampled"


def test_a_turn_cut_by_its_own_limit_goes_on(agent: Any, script: Any) -> None:
    long = Assistant(thinking="so much to say " * 30, calls=(Call("finish"),))
    policy = script(agent.dialect, [long, Assistant(final="ok")])
    trajectory = agent.play(policy, sampling=Sampling(max_tokens=20))
    assert trajectory.stop == "final"
    assert trajectory.entries[1].stop == "length" and "cut off" in trajectory.entries[1].note
    assert measure([trajectory]).cut_turns == 1
    assert parse(trajectory.segments[0].ids, agent.tokenizer)[1].kind == "CutOff"


# limits


def test_the_turn_limit(agent: Any, script: Any, say_call: Any) -> None:
    trajectory = agent.play(script(agent.dialect, [say_call("list")] * 9), limits=AgentLimits(turns=3))
    assert trajectory.stop == "turns" and len(trajectory.turns) == 3
    assert isinstance(trajectory.messages[-1], ToolResult)


def test_the_limit_on_sampled_tokens(agent: Any, script: Any, say_call: Any) -> None:
    policy = script(agent.dialect, [say_call("list"), Assistant(final="a b c d " * 50)])
    trajectory = agent.play(policy, limits=AgentLimits(sampled_tokens=20))
    assert trajectory.stop == "tokens" and trajectory.sampled_tokens == 20
    assert (
        policy.samplings[1].max_tokens
        == 20
        - len(policy.contexts[1].ids)
        + len(policy.contexts[0].ids)
        + 1
        + len(agent.tokenizer.encode("calc.py"))
        + 1
    )


@pytest.mark.parametrize("most", [22, 25, 30, 31, 32, 33, 34, 40, 60])
def test_no_segment_is_longer_than_the_context(agent: Any, script: Any, say_call: Any, most: int) -> None:
    steps = [say_call("list"), say_call("read", path="calc.py"), Assistant(final="a b c d " * 50)]
    policy = script(agent.dialect, steps)
    trajectory = agent.play(policy, limits=AgentLimits(context_tokens=most))
    assert trajectory.stop == "context"
    assert len(trajectory.segments[0].ids) <= most
    for context, sampling in zip(policy.contexts, policy.samplings, strict=True):
        assert 1 <= sampling.max_tokens == most - len(context.ids)


def test_a_prompt_that_does_not_fit_is_no_score(agent: Any, script: Any) -> None:
    with pytest.raises(HarnessFailure, match=r"prompt does not fit into limits\.context_tokens, which is 5"):
        agent.play(script(agent.dialect, []), limits=AgentLimits(context_tokens=5))


def test_the_time_limit(agent: Any, script: Any, say_call: Any) -> None:
    policy = script(agent.dialect, [say_call("run", command="sleep 30")])
    trajectory = agent.play(policy, limits=AgentLimits(seconds=0.3))
    assert trajectory.stop == "time" and trajectory.seconds < 25
    assert trajectory.entries[-1].error == "Timeout"


def test_waiting_for_samples_takes_nothing_of_the_time_limit(agent: Any, script: Any, say_call: Any) -> None:
    class Queued:
        def __init__(self, policy: Any) -> None:
            self.policy = policy

        async def sample(self, context: Context, sampling: Sampling) -> Sample:
            await asyncio.sleep(0.4)
            return await self.policy.sample(context, sampling)  # type: ignore[no-any-return]

    turns = [say_call("read", path="calc.py"), say_call("read", path="calc.py"), Assistant(final="ok")]
    trajectory = agent.play(Queued(script(agent.dialect, turns)), limits=AgentLimits(seconds=1.0))
    assert trajectory.stop == "final" and trajectory.seconds > 1.1


def test_tools_have_more_time_on_a_busy_machine(agent: Any, script: Any, say_call: Any, monkeypatch: Any) -> None:
    for load, stop in ((1.0, "time"), (240.0, "final")):
        monkeypatch.setattr(ToolContext, "slowdown", lambda self, load=load: load)
        policy = script(agent.dialect, [say_call("run", command="sleep 0.5"), Assistant(final="ok")])
        assert agent.play(policy, limits=AgentLimits(seconds=0.25)).stop == stop


def test_seeds_differ_between_turns_and_repeat_between_runs(agent: Any, script: Any, say_call: Any) -> None:
    seeds = []
    for seed in (7, 7, 8):
        policy = script(agent.dialect, [say_call("list"), say_call("list"), Assistant(final="ok")])
        agent.play(policy, sampling=Sampling(seed=seed))
        seeds.append([sampling.seed for sampling in policy.samplings])
        assert all(agent.tokenizer.control["end_of_turn"] in sampling.stop_ids for sampling in policy.samplings)
    assert seeds[0] == seeds[1] and len({*seeds[0], *seeds[2]}) == 6


# failures


def test_a_policy_that_raises_is_a_policy_failure(agent: Any, script: Any, say_call: Any) -> None:
    policy = script(agent.dialect, [say_call("list"), ConnectionError("engine gone")])
    with pytest.raises(PolicyFailure, match="sampling failed in turn 2: ConnectionError: engine gone") as failure:
        agent.play(policy)
    assert len(failure.value.trajectory.entries) == 3 and failure.value.trajectory.stop == ""


def test_a_policy_that_never_answers_is_a_policy_failure(agent: Any) -> None:
    class Silent:
        async def sample(self, context: Context, sampling: Sampling) -> Sample:
            await asyncio.Event().wait()
            raise AssertionError

    with pytest.raises(PolicyFailure, match=r"no sample came within 0\.1 s, in turn 1"):
        agent.play(Silent(), limits=AgentLimits(sample_seconds=0.1))


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        (Sample("", "abort", ids=(9,)), "aborted"),
        (Sample("", "stop", ids=()), "no tokens"),
        (Sample("", "stop", ids=(9,) * 2000), "2000 tokens where at most 1000"),
        (Sample("", "stop", ids=(-1,)), "negative"),
        (Sample("", "stop", ids=(9, 9)), "go on after the end"),
        (Sample("", "stop", ids=(9,), logprobs=(-1.0, -1.0)), "1 tokens and 2 log-prob"),
        (Sample("", "stop", ids=(9,), logprobs=(-1.0,), versions=()), "1 tokens and 0 versions"),
        (Sample("", "stop", ids=(9,), logprobs=(float("nan"),)), "log-probability is not one"),
        (Sample("", "stop", ids=(9,), logprobs=(0.5,)), "log-probability is not one"),
    ],
)
def test_a_sample_that_breaks_its_promises_is_a_policy_failure(
    agent: Any, script: Any, sample: Sample, told: str
) -> None:
    assert agent.tokenizer.control["end_of_turn"] == 9
    with pytest.raises(PolicyFailure, match=told):
        agent.play(script(agent.dialect, [sample]))


def test_text_where_ids_are_needed_is_the_users_mistake(agent: Any, script: Any) -> None:
    with pytest.raises(EtudeError, match="returns no token ids: run it without a tokenizer"):
        agent.play(script(agent.dialect, [Sample("hello", "stop")]))


def test_an_id_outside_the_vocabulary_is_an_unreadable_turn(agent: Any, script: Any) -> None:
    trajectory = agent.play(script(agent.dialect, [Sample("", "stop", ids=(99_999, 9)), Assistant(final="ok")]))
    assert "not in the vocabulary" in trajectory.entries[1].note


def test_a_broken_sandbox_ends_the_rollout(agent: Any, script: Any, say_call: Any) -> None:
    agent.sandbox.failure = SandboxFailure("died", "gone")
    with pytest.raises(SandboxFailure, match="gone"):
        agent.play(script(agent.dialect, [say_call("list")]))


def test_a_broken_tool_is_an_error_that_the_model_goes_on_from_and_is_counted(agent: Any, script: Any) -> None:
    class Broken(Tool):
        name = "broken"
        description = "fails"

        async def call(self, arguments: Any, context: Any) -> Observation:
            raise ZeroDivisionError("oops")

    turns = [Assistant(calls=(Call("list"), Call("broken"), Call("list"))), Assistant(calls=(Call("finish"),))]
    trajectory = agent.play(script(agent.dialect, turns), tools=agent.tools | {"broken": Broken(None)})
    assert trajectory.stop == "finish"
    (entry,) = [entry for entry in trajectory.entries if entry.error is not None]
    assert entry.message == ToolResult("broken", "error: broken failed")  # how is not for the model to know
    assert entry.note == "the tool broken failed: ZeroDivisionError: oops"
    metrics = measure([trajectory])
    assert metrics.tools["broken"].errors == {"HarnessBug": 1} and metrics.tools["broken"].reliability == 0
    assert metrics.tools["list"].calls == 2 and metrics.tools["list"].reliability == 1


def test_a_person_may_say_no(agent: Any, script: Any, say_call: Any) -> None:
    asked = []

    async def approve(call: Call) -> bool:
        asked.append(call.name)
        return False

    steps = [say_call("run", command="touch x"), Assistant(final="As you wish.")]
    trajectory = agent.play(script(agent.dialect, steps), approve=approve)
    assert asked == ["run"] and agent.sandbox.commands == []
    assert (trajectory.entries[2].error, trajectory.stop) == ("UserAborted", "final")


def test_the_harness_needs_no_torch() -> None:
    modules = "etude.harness.loop, etude.harness.trajectory_files, etude.harness.tools.table"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


# policies without ids


def test_a_policy_of_text_alone_is_played_but_never_trained_on(agent: Any, script: Any, say_call: Any) -> None:
    texts = [Sample(write_turn(turn), "stop") for turn in solution(say_call)]
    trajectory = agent.play(script(None, texts), dialect=None)
    assert trajectory.stop == "finish"
    assert (agent.sandbox.root / "calc.py").read_text() == WRONG.replace("-", "+")
    assert trajectory.turns == solution(say_call)
    assert not trajectory.trainable and trajectory.trainable.why_not == "the policy returned no token ids"
    effort = trajectory.effort
    assert effort.thinking_tokens == 3 and not effort.exact and (effort.calls, effort.turns) == (5, 4)


def test_unreadable_text_is_answered_and_shown_again(agent: Any, script: Any) -> None:
    bad = "I will <tool_call>{not json</tool_call>"
    policy = script(None, [Sample(bad, "stop"), Sample("half a", "length"), Sample("Done.", "stop")])
    trajectory = agent.play(policy, dialect=None)
    assert trajectory.stop == "final" and trajectory.answer == "Done."
    assert policy.contexts[1].messages[1:] == (
        Assistant(final=bad),
        ToolResult("", 'error: a call is not JSON: {"name": ..., "arguments": {...}}'),
    )
    assert policy.contexts[2].messages[3] == Assistant(final="half a")
    metrics = measure([trajectory])
    assert (metrics.malformed_turns, metrics.cut_turns) == (1, 1)


def test_text_that_is_no_text_is_a_policy_failure(agent: Any, script: Any) -> None:
    with pytest.raises(PolicyFailure, match="half of a surrogate pair"):
        agent.play(script(None, [Sample("\ud800", "stop")]), dialect=None)


# events and size


def test_events_tell_the_story_in_order(agent: Any, script: Any, say_call: Any) -> None:
    seen: list[Event] = []
    agent.play(script(agent.dialect, [say_call("list"), Assistant(final="ok")]), on_event=seen.append)
    assert [event.kind for event in seen] == [
        "message", "sampling", "message", "calling", "message", "sampling", "message", "stop",
    ]  # fmt: skip
    assert seen[3].calls == (Call("list"),) and seen[-1].stop == "final"
    assert seen[4].entry is not None and seen[4].entry.message == ToolResult("list", "calc.py")


def test_a_rollout_says_nothing_that_differs_between_two_runs(agent: Any, script: Any, say_call: Any) -> None:
    steps = [
        say_call("grep", pattern="a"),
        say_call("list"),
        say_call("run", command="ls; date +%Z"),
        Assistant(final="x"),
    ]
    first = agent.play(script(agent.dialect, steps))
    assert agent.play(script(agent.dialect, steps)).segments == first.segments


class Echo(Tool):
    """Keeps what it is given, byte for byte, and answers with the next prepared text."""

    name = "echo"
    description = "echo"
    arguments = tuple(Argument(name, name, required=False) for name in ("a", "b", "c"))

    def __init__(self, answers: list[str]) -> None:
        super().__init__(None)
        self.answers = answers
        self.given: list[dict[str, str]] = []

    async def call(self, arguments: Any, context: Any) -> Observation:
        self.given.append(dict(arguments))
        return Observation(self.answers[len(self.given) - 1])


def random_text(rng: random.Random, tokenizer: Any) -> str:
    kind = rng.randrange(4)
    if kind == 0:
        return to_text(rng.randbytes(rng.randrange(12)))
    if kind == 1:
        return "".join(f"<|{name}|>" for name in rng.sample(sorted(tokenizer.control), 2))
    if kind == 2:
        return "".join(chr(rng.choice([9, 10, 13, 32, 97, 233, 0x4E2D, 0x1F600])) for _ in range(rng.randrange(9)))
    return rng.choice(["return a + b\n", "", "\n", "def add(a, b):", " x"])


def random_rollouts(agent: Any, script: Any, count: int) -> int:
    """Plays random turns through the loop and checks each against one rendering and one reading of the whole."""
    tokens = 0
    for number in range(count):
        rng = random.Random(number)
        text = lambda: random_text(rng, agent.tokenizer)  # noqa: B023, E731
        turns = []
        for _ in range(rng.randrange(1, 4)):
            some = [{name: text() for name in rng.sample("abc", rng.randrange(3))} for _ in range(rng.randrange(1, 4))]
            turns.append(Assistant(text(), text(), tuple(Call("echo", arguments) for arguments in some)))
        calls = [call for turn in turns for call in turn.calls]
        echo = Echo([text() for _ in calls])
        policy = script(agent.dialect, [*turns, Assistant(final="end")], V1)
        trajectory = agent.play(policy, instruction=text(), system=text(), tools={"echo": echo})
        [segment] = trajectory.segments
        assert echo.given == [call.arguments for call in calls]
        assert trajectory.turns == [*turns, Assistant(final="end")]
        assert segment.ids == render(trajectory.messages, agent.tokenizer, open_turn=False).ids
        assert parse(segment.ids, agent.tokenizer) == trajectory.messages
        for context in policy.contexts:
            assert tuple(segment.ids[: len(context.ids)]) == context.ids
        tokens += len(segment.ids)
    return tokens


def test_random_rollouts_lose_no_byte_and_render_alike(agent: Any, script: Any) -> None:
    assert random_rollouts(agent, script, 150) > 150 * 10


def test_a_small_rollout_spends_few_tokens_on_the_harness(agent: Any, script: Any, say_call: Any) -> None:
    short = system_text("", build_tools([{"use": name} for name in ("read", "edit", "run", "finish")]))
    trajectory = agent.play(script(agent.dialect, solution(say_call)), system=short)
    texts = [short, "Mend add.", "look first", "calc.py", WRONG, "calc.py", "ok", "3", "Mended.", "add adds"]
    said = [*texts, "readpathcalc.py", "list", "editpathcalc.pyolda - bnewa + b", "finishmessage"]
    said += ["runcommandpython3 -c 'import calc; print(calc.add(1, 2))'"]
    words = sum(len(agent.tokenizer.encode(text)) for text in said)
    assert len(trajectory.segments[0].ids) - words < 40  # markers alone

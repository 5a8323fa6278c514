"""Self-summary: a rollout longer than its context goes on from what the model wrote down, token for token."""

from __future__ import annotations

import gc
import itertools
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Context, Sample, Sampling, System, ToolResult, User, Version
from etude.core.settings import AgentLimits, SummarySettings
from etude.harness.failures import HarnessFailure
from etude.harness.summary import LONG_REQUEST, REQUEST, common_prefix, cut_results, is_request
from etude.harness.text_turns import write_turn
from etude.harness.trajectory import MessageRecord, Parent, Trajectory
from etude.harness.trajectory_files import load_trajectory, save_trajectory
from etude.tokens.render import Span
from etude.tokens.template import TemplateDialect

V1 = Version(0, 1)
LIMITS = AgentLimits(turns=12, context_tokens=240, rollout_tokens=4000)


@pytest.fixture
def agent(rollouts: Any) -> Any:
    (rollouts.sandbox.root / "calc.py").write_text("def add(a, b):\n    return a + b\n" * 3)
    return rollouts


@pytest.fixture
def opened(template_models: dict[str, Path]) -> Any:
    return lambda name: TemplateDialect.open(template_models[name], {})


class Worker:
    """Reads until it was asked often enough, sums up when it is told to, and keeps what it saw."""

    def __init__(self, script: Any, reads: int, before: Assistant | None = None, thought: str = "") -> None:
        self.say, self.reads, self.before, self.thought = script, reads, before, thought
        self.contexts: list[Context] = []
        self.samplings: list[Sampling] = []
        self.done = 0

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        self.contexts.append(context)
        self.samplings.append(sampling)
        if is_request(context.messages[-1]):
            turn = self.before or Assistant("scratch", "read calc.py")
        elif self.done < self.reads:
            self.done += 1
            turn = Assistant(self.thought, calls=(Call("read", {"path": "calc.py"}),))
        else:
            turn = Assistant(final="ok")
        if self.say is None:
            return Sample(write_turn(turn), "stop")
        ids = tuple(self.say.dialect.turn_ids(turn, context.messages))
        cut = len(ids) > sampling.max_tokens
        sample: Sample = self.say.say(ids[: sampling.max_tokens], "length" if cut else "stop")
        return sample


def spans(trajectory: Trajectory, part: str) -> list[tuple[int, Span]]:
    return [
        (number, span)
        for number, segment in enumerate(trajectory.segments)
        for span in segment.rendered.spans
        if span.part == part
    ]


def test_a_summary_that_nobody_can_wait_for_ends_the_rollout_like_any_answer(agent: Any, script: Any) -> None:
    class Slow(Worker):
        async def sample(self, context: Context, sampling: Sampling) -> Any:
            found: Any = await super().sample(context, sampling)
            if not is_request(context.messages[-1]):
                return found
            cut = {name: getattr(found, name)[:2] for name in ("ids", "logprobs", "versions")}
            return replace(found, **cut, stop="length", late=True)

    trajectory = agent.play(Slow(script(agent.dialect, [], V1), reads=9), limits=LIMITS, system="Mend.")
    assert (trajectory.stop, trajectory.summaries, len(trajectory.segments)) == ("tokens", 1, 1)
    assert trajectory.trainable


def test_a_full_context_is_summed_up_and_the_rollout_goes_on(agent: Any, script: Any, tmp_path: Path) -> None:
    policy = Worker(script(agent.dialect, [], V1), reads=9)
    trajectory = agent.play(policy, limits=LIMITS, system="Mend.")
    assert trajectory.stop == "final" and trajectory.effort.calls == 9 and trajectory.summaries >= 2
    assert [s.cause for s in trajectory.segments] == ["start"] + ["summary"] * trajectory.summaries
    assert all(len(segment.ids) <= LIMITS.context_tokens for segment in trajectory.segments)
    for number, segment in enumerate(trajectory.segments[1:], start=1):
        before = trajectory.segments[number - 1]
        assert segment.parent == Parent(number - 1, len(before.ids))
        messages = [trajectory.entries[entry].message for entry in segment.messages]
        assert messages[0] == System("Mend.") and isinstance(messages[1], User)
        text = messages[1].text
        assert text.startswith("Mend add.") and f"Summary {number}:\nread calc.py" in text and "scratch" not in text
        assert segment.copied == 1 + len(agent.tokenizer.encode("Mend."))
        asked, said = (trajectory.entries[entry] for entry in before.messages[-2:])
        assert asked.purpose == "request" and asked.message == User(REQUEST)
        assert said.purpose == "summary" and said.segment == number - 1
    # Within a segment every prompt begins with all tokens before it: the request too, so the prefix is reused.
    for old, new in itertools.pairwise(policy.contexts):
        grown = new.ids is not None and old.ids is not None and new.ids[: len(old.ids)] == old.ids
        assert grown != (trajectory.messages[0:1] == new.messages[0:1] and len(new.messages) == 2)
    assert trajectory.trainable and trajectory.effort.summary_tokens == len(spans(trajectory, "summary")) * (
        1 + len(agent.tokenizer.encode("read calc.py")) + 1
    )
    trained = sum(int(segment.trained().sum()) for segment in trajectory.segments)
    assert trained == trajectory.sampled_tokens  # summaries and their thinking included
    assert trajectory.effort.thinking_tokens > 0 and trajectory.answer == "ok"
    save_trajectory(trajectory, tmp_path / "saved")
    again = load_trajectory(tmp_path / "saved")
    assert again.entries == trajectory.entries and again.summaries == trajectory.summaries
    for mine, theirs in zip(again.segments, trajectory.segments, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine.arrays().values(), theirs.arrays().values(), strict=True))


def test_without_summary_the_same_rollout_ends_with_its_context(agent: Any, script: Any) -> None:
    policy = Worker(script(agent.dialect, [], V1), reads=9)
    trajectory = agent.play(policy, limits=LIMITS, summary=SummarySettings("off"))
    assert trajectory.stop == "context" and trajectory.summaries == 0 and len(trajectory.segments) == 1
    one = AgentLimits(turns=12, context_tokens=240)
    assert agent.play(Worker(script(agent.dialect, [], V1), reads=9), limits=one).stop == "context"


def test_the_prompted_baseline_takes_the_same_path_and_its_summaries_are_context_only(
    agent: Any, script: Any, tmp_path: Path
) -> None:
    limits = AgentLimits(turns=40, context_tokens=2400, rollout_tokens=20_000)
    policy = Worker(script(agent.dialect, [], V1), reads=30)
    settings = SummarySettings("prompted", at=400, max_tokens=100)
    trajectory = agent.play(policy, limits=limits, summary=settings)
    assert trajectory.stop == "final" and trajectory.summaries >= 2
    assert any(entry.message == User(LONG_REQUEST) for entry in trajectory.entries)
    for number, span in spans(trajectory, "summary"):
        assert not trajectory.segments[number].trained()[span.start : span.end].any()
    save_trajectory(trajectory, tmp_path / "saved")
    assert load_trajectory(tmp_path / "saved").segments[0].untrained == trajectory.segments[0].untrained != []


def test_tool_output_is_cut_so_that_request_and_summary_fit(agent: Any, script: Any) -> None:
    (agent.sandbox.root / "calc.py").write_text("".join(f"x{number} = {number}\n" for number in range(400)))
    policy = Worker(script(agent.dialect, [], V1), reads=3)
    trajectory = agent.play(policy, limits=LIMITS)
    assert trajectory.stop == "final" and trajectory.summaries == 3
    results = [entry.message.text for entry in trajectory.entries if isinstance(entry.message, ToolResult)]
    assert len(results) == 3 and all("left out" in text and "x399" in text for text in results)


def test_what_the_harness_knows_is_told_again(agent: Any, script: Any) -> None:
    list_steps = Assistant(calls=(Call("todo", {"items": "[x] read\n[ ] mend it"}),))
    steps: list[Any] = [list_steps, *[Assistant(calls=(Call("read", {"path": "calc.py"}),))] * 2]
    say = script(agent.dialect, steps, V1)

    def answer(context: Context, sampling: Sampling) -> Sample:
        turn = Assistant(final="so far" if is_request(context.messages[-1]) else "ok")
        return say.say(agent.dialect.turn_ids(turn))  # type: ignore[no-any-return]

    say.steps += [answer] * 3
    trajectory = agent.play(say, limits=LIMITS, summary=SummarySettings(at=120))
    restart = next(entry.message for entry in trajectory.entries if entry.purpose == "restart")
    assert restart.text == "Mend add.\n\nSummary 1:\nso far\n\nSteps:\n[x] read\n[ ] mend it"


@pytest.mark.parametrize(
    "turn", [Assistant("only thoughts"), Assistant(final="w " * 400), Assistant(final="", calls=(Call("list", {}),))]
)
def test_a_bad_summary_is_its_authors_loss_and_no_failure(agent: Any, script: Any, turn: Assistant) -> None:
    policy = Worker(script(agent.dialect, [], V1), reads=6, before=turn)
    trajectory = agent.play(policy, limits=LIMITS)
    assert trajectory.stop == "final" and trajectory.summaries >= 1
    assert trajectory.effort.calls == 6  # what a summary calls is not run
    restart = next(entry.message for entry in trajectory.entries if entry.purpose == "restart")
    assert ("none was written" in restart.text) == (not turn.final)


def test_the_whole_chain_has_a_limit(agent: Any, script: Any) -> None:
    limits = AgentLimits(turns=500, context_tokens=240, rollout_tokens=1000)
    trajectory = agent.play(Worker(script(agent.dialect, [], V1), reads=400), limits=limits)
    assert trajectory.stop == "context"
    taken = sum(len(segment.ids) - segment.copied for segment in trajectory.segments)
    assert 1000 - 240 <= taken <= 1000 + 240


def test_a_policy_that_speaks_text_is_asked_too(agent: Any, tmp_path: Path) -> None:
    policy = Worker(None, reads=12)
    limits = AgentLimits(turns=20, context_tokens=160, rollout_tokens=4000)
    trajectory = agent.play(policy, dialect=None, limits=limits, system="Mend.")
    assert trajectory.stop == "final" and trajectory.summaries >= 2 and trajectory.effort.calls == 12
    assert max(len(context.messages) for context in policy.contexts) < 12
    assert len(trajectory.conversations) == trajectory.summaries + 1
    assert all(messages[0] == System("Mend.") for messages in trajectory.conversations)
    save_trajectory(trajectory, tmp_path / "saved")
    assert load_trajectory(tmp_path / "saved").conversations == trajectory.conversations


@pytest.mark.parametrize(("name", "thought"), [("qwen3", ""), ("qwen3", "hm"), ("kimi", ""), ("deepseek", "")])
def test_a_loaded_models_template_is_asked_where_nothing_is_rewritten(
    agent: Any, script: Any, opened: Any, name: str, thought: str
) -> None:
    dialect = opened(name)
    limits = AgentLimits(turns=40, context_tokens=3200, rollout_tokens=20_000)
    policy = Worker(script(dialect, [], V1), reads=24, thought=thought)
    trajectory = agent.play(policy, dialect=dialect, limits=limits, summary=SummarySettings(at=2300, max_tokens=300))
    assert trajectory.stop == "final" and trajectory.summaries >= 1 and trajectory.trainable
    for old, new in itertools.pairwise(policy.contexts):
        assert old.ids is not None and new.ids is not None
        if is_request(new.messages[-1]):
            kept = common_prefix(old.ids, new.ids)
            if thought:
                # Behind a user's message this template drops the thinking of all turns: the request stands behind the
                # last result, where no more than the end of that one is written again.
                assert isinstance(new.messages[-1], ToolResult) and kept > len(old.ids) - 8
            else:
                assert isinstance(new.messages[-1], User) and kept == len(old.ids)


def test_memory_stays_flat_over_long_rollouts(agent: Any, script: Any) -> None:
    """benchmarks/long_rollouts.py does it with 200,000 tokens and 300 calls."""
    limits = AgentLimits(turns=200, context_tokens=240, rollout_tokens=100_000, sampled_tokens=100_000)

    def run() -> int:
        policy = Worker(script(agent.dialect, [], V1), reads=100)
        trajectory = agent.play(policy, limits=limits)
        assert trajectory.effort.calls == 100 and trajectory.summaries > 20
        assert max(len(context.ids or ()) for context in policy.contexts) <= 240
        return sum(len(segment.ids) for segment in trajectory.segments)

    run()
    gc.collect()
    tracemalloc.start()
    tokens = run()
    gc.collect()
    left, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 200_000 and peak < 2_000_000 + 1000 * tokens


def test_results_share_the_room_and_short_ones_stay_whole() -> None:
    texts = ["short", "long line\n" * 200, "x" * 3000]
    records = [MessageRecord(ToolResult("run", text)) for text in texts]
    cut = [record.message.text for record in cut_results(records, 300, lambda text: len(text) // 4)]  # type: ignore[union-attr]
    assert cut[0] == "short" and 150 < sum(len(text) // 4 for text in cut) <= 300
    assert "left out" in cut[1] and "left out" in cut[2]
    assert cut_results(records, 10_000, len) == records
    said = [MessageRecord(ToolResult("edit", "ok"))]
    assert cut_results(said, 0, len) == said  # what tells of a cut would be longer


@pytest.mark.parametrize("always", [False, True])
def test_a_template_that_takes_no_request_after_the_models_turn_is_a_score(
    agent: Any, script: Any, template_models: dict[str, Path], tmp_path: Path, always: bool
) -> None:
    """Void only where it refuses the request after any turn: else a model could discard its rollouts at will."""
    folder = tmp_path / "model"
    shutil.copytree(template_models["qwen3"], folder)
    template = (folder / "chat_template.jinja").read_text()
    said = "true" if always else "messages | selectattr('role', 'equalto', 'assistant') | map(attribute='content')"
    said += "" if always else " | join | length > 0"
    asked = f"{REQUEST[:20]!r} in messages[-1].content"
    refusing = f"{{% if {asked} and ({said}) %}}{{{{ raise_exception('No more.') }}}}{{% endif %}}"
    (folder / "chat_template.jinja").write_text(refusing + template)
    dialect = TemplateDialect.open(folder)
    turn = Assistant(final="I read." * 9, calls=(Call("read", {"path": "calc.py"}),))
    policy = script(dialect, itertools.repeat(turn, 12), V1)
    limits = AgentLimits(turns=12, context_tokens=9000, rollout_tokens=40000)
    settings = SummarySettings(at=2500, max_tokens=100)
    if always:
        with pytest.raises((HarnessFailure, EtudeError), match="No more"):
            agent.play(policy, dialect=dialect, limits=limits, summary=settings)
    else:
        trajectory = agent.play(policy, dialect=dialect, limits=limits, summary=settings)
        notes = [entry.note for entry in trajectory.entries if entry.error]
        assert trajectory.stop == "malformed" and "takes no request" in notes[-1]


def test_settings_that_leave_no_room_are_refused(agent: Any, script: Any) -> None:
    with pytest.raises(EtudeError, match="leave 0 for the work"):
        agent.play(script(agent.dialect, []), limits=LIMITS, summary=SummarySettings(max_tokens=230))
    with pytest.raises(HarnessFailure, match="beside a summary"):
        agent.play(script(agent.dialect, []), "word " * 120, limits=LIMITS)

"""The real loop with models that bring their own chat template: token-exact, new segments where history changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Sample, Version
from etude.core.settings import AgentLimits
from etude.harness.failures import HarnessFailure
from etude.harness.prompt import system_text
from etude.harness.tools.base import schema_of
from etude.harness.trajectory import Parent, Trajectory
from etude.harness.trajectory_files import load_trajectory, save_trajectory
from etude.tokens.render import Rendered
from etude.tokens.template import TemplateDialect

V1 = Version(0, 1)
TEMPLATES: list[tuple[str, dict[str, Any], bool]] = [  # a template, variables for it, and whether it is shown thinking
    ("qwen3", {}, True),
    ("hermes", {}, True),
    ("qwen_coder", {}, True),
    ("deepseek", {}, False),
    ("kimi", {}, True),
    ("kimi_thinking", {"thinking": True}, True),
]


def turns(thinking: bool) -> list[Assistant]:
    think = "I look first." if thinking else ""
    read = Call("read", {"path": "calc.py", "start": "1"})
    return [
        Assistant(think, "Looking.", (read, Call("list"))),
        Assistant(think, "", (Call("write", {"path": "calc.py", "text": "x = '<|im_end|></tool_call>'\n"}),)),
        Assistant(think, "Done."),
    ]


@pytest.fixture
def opened(template_models: dict[str, Path]) -> Callable[..., TemplateDialect]:
    return lambda name, **options: TemplateDialect.open(template_models[name], options)


@pytest.fixture
def agent(rollouts: Any, sandbox: Any) -> Any:
    (sandbox.root / "calc.py").write_text("def add(a, b):\n    return a - b  # <|im_end|><tool_call>\n")
    return rollouts


def sampled_tokens(trajectory: Trajectory) -> list[int]:
    """All tokens that may be trained, in order."""
    return [
        token
        for segment in trajectory.segments
        for token, origin in list(zip(segment.ids, segment.origins, strict=True))[segment.copied :]
        if origin == "sampled"
    ]


@pytest.mark.parametrize(("name", "options", "thinking"), TEMPLATES)
def test_a_rollout_in_a_checkpoints_own_template(
    agent: Any, script: Any, opened: Any, tmp_path: Path, name: str, options: dict[str, Any], thinking: bool
) -> None:
    dialect = opened(name, **options)
    policy = script(dialect, turns(thinking), V1)
    trajectory = agent.play(policy, dialect=dialect, system="You mend code.", limits=AgentLimits(context_tokens=9000))
    assert trajectory.stop == "final" and trajectory.turns == turns(thinking)
    assert (agent.sandbox.root / "calc.py").read_text() == "x = '<|im_end|></tool_call>'\n"
    (segment,) = trajectory.segments
    for before, after in zip(policy.contexts, policy.contexts[1:], strict=False):
        assert after.ids[: len(before.ids)] == before.ids  # each prompt begins with all tokens before it
    said = [
        dialect.turn_ids(turn, context.messages) for turn, context in zip(turns(thinking), policy.contexts, strict=True)
    ]
    assert sampled_tokens(trajectory) == [token for turn in said for token in turn]
    prompt = Rendered()
    tools = [schema_of(tool) for tool in agent.tools.values()]
    assert dialect.extend(prompt, trajectory.messages[:2], open_turn=True, tools=tools)
    assert segment.ids[: len(prompt.ids)] == prompt.ids == list(policy.contexts[0].ids)
    assert trajectory.trainable and trajectory.effort.turns == 3 and trajectory.effort.calls == 3
    assert bool(trajectory.effort.thinking_tokens) == thinking and trajectory.effort.output_tokens > 0
    assert all(sampling.stop_ids == dialect.stop_ids for sampling in policy.samplings)
    save_trajectory(trajectory, tmp_path / "saved")
    again = load_trajectory(tmp_path / "saved")
    assert again.segments[0].ids == segment.ids and again.segments[0].rendered.spans == segment.rendered.spans


def test_a_template_that_rewrites_history_opens_a_new_segment_each_time(
    agent: Any, script: Any, opened: Any, tmp_path: Path
) -> None:
    dialect = opened("deepseek", thinking=True)  # its history never has thinking, its turns always do
    policy = script(dialect, turns(True), V1)
    trajectory = agent.play(policy, dialect=dialect, limits=AgentLimits(context_tokens=9000))
    assert trajectory.turns == turns(True) and [s.cause for s in trajectory.segments] == ["start", "rewrite", "rewrite"]
    for number, (segment, context) in enumerate(zip(trajectory.segments, policy.contexts, strict=True)):
        sample = segment.ids[len(context.ids) :]
        assert segment.ids[: len(context.ids)] == list(context.ids)
        assert sample == dialect.turn_ids(turns(True)[number], context.messages)
        assert segment.origins == ["environment"] * len(context.ids) + ["sampled"] * len(sample)
        if number:
            assert segment.parent == Parent(number - 1, len(trajectory.segments[number - 1].ids))
            assert 0 < segment.copied < len(context.ids)
            assert "look first" not in dialect.decode(context.ids)
    # Nothing is trained twice: what is sampled in the segments together is what was said.
    everything = [dialect.turn_ids(turn, c.messages) for turn, c in zip(turns(True), policy.contexts, strict=True)]
    assert sampled_tokens(trajectory) == [token for turn in everything for token in turn]
    assert trajectory.trainable and trajectory.sampled_tokens == sum(map(len, everything))
    effort = trajectory.effort
    counted = effort.thinking_tokens + effort.call_tokens + effort.final_tokens
    assert counted == trajectory.sampled_tokens and effort.output_tokens > 0
    save_trajectory(trajectory, tmp_path / "saved")
    again = load_trajectory(tmp_path / "saved")
    assert [s.copied for s in again.segments] == [s.copied for s in trajectory.segments]
    for mine, theirs in zip(again.segments, trajectory.segments, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine.arrays().values(), theirs.arrays().values(), strict=True))


def test_a_rewrite_that_does_not_fit_ends_the_rollout(agent: Any, script: Any, opened: Any) -> None:
    dialect = opened("deepseek", thinking=True)
    whole = agent.play(script(dialect, turns(True), V1), dialect=dialect, limits=AgentLimits(context_tokens=9000))
    most = whole.segments[1].copied + 3
    cut = agent.play(script(dialect, turns(True), V1), dialect=dialect, limits=AgentLimits(context_tokens=most))
    assert cut.stop in ("context", "malformed") and len(cut.segments) == 1


@pytest.mark.parametrize("name", ["qwen3", "kimi", "deepseek"])
def test_an_unreadable_turn_is_an_observation_here_too(agent: Any, script: Any, opened: Any, name: str) -> None:
    dialect = opened(name)
    opener = dialect._shape.style.format.opener
    bad = dialect._vocabulary.encode_written(f"{opener}no JSON{dialect._shape.end}")
    policy = script(dialect, [lambda c, s: policy.say(bad), Assistant(final="ok")], V1)
    trajectory = agent.play(policy, dialect=dialect, limits=AgentLimits(context_tokens=9000))
    assert trajectory.stop == "final" and trajectory.entries[-2].message.text.startswith("error: ")
    assert policy.contexts[1].ids[len(policy.contexts[0].ids) :][: len(bad)] == tuple(bad)


def test_a_turn_without_an_end_token_is_closed_before_the_next(agent: Any, script: Any, opened: Any) -> None:
    dialect = opened("qwen3")
    cut = Sample("", "length", tuple(dialect.encode("I was")), None, None)
    policy = script(dialect, [cut, Assistant(final="ok")])
    trajectory = agent.play(policy, dialect=dialect, limits=AgentLimits(context_tokens=9000))
    (segment,) = trajectory.segments
    at = len(policy.contexts[0].ids) + len(cut.ids or ())
    assert segment.ids[at] in dialect.stop_ids and segment.origins[at] == "environment"


def test_a_template_that_refuses_what_a_turn_led_to_fails_that_rollout(
    agent: Any, script: Any, template_models: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(template_models["qwen3"], folder)
    template = (folder / "chat_template.jinja").read_text()
    refusing = "{% if messages[-1].role == 'tool' %}{{ raise_exception('No tools here.') }}{% endif %}"
    (folder / "chat_template.jinja").write_text(refusing + template)
    dialect = TemplateDialect.open(folder)
    with pytest.raises(HarnessFailure, match=r"cannot go on after turn 1.*No tools here") as caught:
        agent.play(script(dialect, turns(True), V1), dialect=dialect, limits=AgentLimits(context_tokens=9000))
    assert caught.value.trajectory is not None and len(caught.value.trajectory.turns) == 1
    (folder / "chat_template.jinja").write_text("{{ raise_exception('Nothing at all.') }}")
    dialect = TemplateDialect.open(folder)
    with pytest.raises(EtudeError, match="Nothing at all"):
        agent.play(script(dialect, turns(True), V1), dialect=dialect)


def test_a_template_that_refuses_what_the_models_own_turn_caused_is_a_score(
    agent: Any, script: Any, template_models: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(template_models["qwen3"], folder)
    template = (folder / "chat_template.jinja").read_text()
    odd = "{% for m in messages %}{% if m.role == 'tool' and m.name is not defined %}{{ raise_exception('Whose?') }}"
    (folder / "chat_template.jinja").write_text(odd + "{% endif %}{% endfor %}" + template)
    dialect = TemplateDialect.open(folder)
    opener = dialect._shape.style.format.opener
    bad = dialect._vocabulary.encode_written(f"{opener}no JSON{dialect._shape.end}")
    policy = script(dialect, [lambda c, s: policy.say(bad)], V1)
    trajectory = agent.play(policy, dialect=dialect, limits=AgentLimits(context_tokens=9000))
    assert trajectory.stop == "malformed" and trajectory.trainable and trajectory.sampled_tokens == len(bad)
    assert "Whose?" in trajectory.entries[-1].note


def test_tools_are_told_once(agent: Any, opened: Any) -> None:
    """A template shows the tools itself, so the system text leaves them out."""
    tools = agent.tools
    assert "read" in system_text("", tools, "short") and system_text("Hi.", tools, "none") == "Hi."
    schema = schema_of(tools["read"])
    assert schema.name == "read" and schema.parameters["required"] == ["path"]
    assert schema.parameters["properties"]["start"]["type"] == "integer"
    assert schema.parameters["properties"]["path"] == {
        "type": "string",
        "description": tools["read"].arguments[0].doc,
    }

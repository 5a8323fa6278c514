"""A hint above a turn: the same sampled ids in a context that the real dialects write, or none at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from etude.core.policy import Assistant, Call
from etude.core.settings import AgentLimits
from etude.core.terms import Terms
from etude.harness.hinted import hint_message, place_hints
from etude.harness.tools.base import schema_of
from etude.harness.trajectory import Trajectory
from etude.tokens.dialect import EFFORT_VARIABLE
from etude.tokens.render import render
from etude.tokens.template import TemplateDialect

TURNS = [
    Assistant("Look.", calls=(Call("read", {"path": "calc.py"}),)),
    Assistant(calls=(Call("edit", {"path": "calc.py", "old": "a * b", "new": "a + b"}),)),
    Assistant(calls=(Call("edit", {"path": "calc.py", "old": "a - b", "new": "a + b"}),)),
    Assistant(final="Done."),
]


@pytest.fixture
def agent(rollouts: Any, sandbox: Any) -> Any:
    (sandbox.root / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    return rollouts


def turn_entries(trajectory: Trajectory) -> list[int]:
    return [i for i, entry in enumerate(trajectory.entries) if isinstance(entry.message, Assistant)]


def test_the_teacher_reads_the_conversation_with_the_hint_in_it(agent: Any, script: Any) -> None:
    trajectory = agent.play(script(agent.dialect, TURNS), system="Mend it.")
    turns = turn_entries(trajectory)
    hints = place_hints(trajectory, [(turns[1], "copy old"), (turns[0], "read"), (turns[3], "")], agent.dialect)
    assert [hint.site for hint in hints] == [0, 1]
    ids = trajectory.segments[0].ids
    for hint, turn in zip(hints, (turns[1], turns[0]), strict=True):
        text = ("copy old", "read")[hint.site]
        messages = [*trajectory.messages[:turn], hint_message(text), trajectory.messages[turn]]
        teacher = [*ids[: hint.at], *hint.inserted, *ids[hint.start : hint.end]]
        assert teacher == render(messages, agent.tokenizer, open_turn=False).ids
        assert agent.dialect.parse_turn(ids[hint.start : hint.end]) == trajectory.messages[turn]


def test_hints_for_one_turn_are_one_and_what_is_no_turn_has_none(agent: Any, script: Any) -> None:
    trajectory = agent.play(script(agent.dialect, TURNS))
    turn = turn_entries(trajectory)[1]
    wanted = [(turn, "one."), (turn, "two."), (turn + 1, "a tool's result"), (0, "the task"), (99, "nothing")]
    (hint,) = place_hints(trajectory, wanted, agent.dialect)
    assert hint.site == 0 and "one. two." in agent.dialect.decode(hint.inserted)


def test_history_of_an_earlier_conversation_is_context_only(agent: Any, script: Any) -> None:
    history = (hint_message("old"), Assistant(final="Yes."))
    trajectory = agent.play(script(agent.dialect, TURNS), history=history)
    entries = turn_entries(trajectory)
    assert [hint.site for hint in place_hints(trajectory, [(e, "x") for e in entries], agent.dialect)] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["qwen3", "hermes", "qwen_coder", "deepseek", "kimi"])
def test_under_chat_templates_no_sampled_token_before_the_hint_changes(
    agent: Any, script: Any, template_models: dict[str, Path], name: str
) -> None:
    dialect = TemplateDialect.open(template_models[name], {})
    schemas = [schema_of(tool) for tool in agent.tools.values()]
    turns = [Assistant("", turn.final, turn.calls) for turn in TURNS]
    trajectory = agent.play(
        script(dialect, turns), dialect=dialect, limits=AgentLimits(context_tokens=20_000, sampled_tokens=8000)
    )
    entries = turn_entries(trajectory)
    hints = place_hints(trajectory, [(entry, "copy old") for entry in entries], dialect, schemas)
    assert hints, "no hint could be placed at all"
    for hint in hints:
        segment = trajectory.segments[hint.segment]
        before = [i for i, origin in enumerate(segment.origins[: hint.start]) if origin != "environment"]
        assert all(i < hint.at for i in before)
        teacher = [*segment.ids[: hint.at], *hint.inserted]
        shown = dialect.decode(teacher)
        assert shown.count("copy old") == 1 and shown.rstrip().find("copy old") > shown.find("Mend add.")
        parsed = dialect.parse_turn(segment.ids[hint.start : hint.end])
        assert parsed == trajectory.messages[entries[hint.site]]


def test_a_template_that_drops_old_thinking_when_the_user_speaks_drops_the_hint(
    agent: Any, script: Any, template_models: dict[str, Path]
) -> None:
    dialect = TemplateDialect.open(template_models["qwen3"], {})
    schemas = [schema_of(tool) for tool in agent.tools.values()]
    turns = [Assistant("I think.", turn.final, turn.calls) for turn in TURNS]
    trajectory = agent.play(
        script(dialect, turns), dialect=dialect, limits=AgentLimits(context_tokens=20_000, sampled_tokens=8000)
    )
    entries = turn_entries(trajectory)
    hints = place_hints(trajectory, [(entry, "copy old") for entry in entries], dialect, schemas)
    assert [hint.site for hint in hints] == [0]  # only above the first turn is there no thinking to drop


def test_where_a_template_states_the_effort_the_teacher_reads_the_level_of_the_rollout(
    agent: Any, script: Any, template_models: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(template_models["kimi"], tmp_path / "model")
    template = tmp_path / "model" / "chat_template.jinja"
    line = "{% if " + EFFORT_VARIABLE + " %}Reasoning: {{ " + EFFORT_VARIABLE + " }}\n{% endif %}"
    template.write_text(line + template.read_text())
    dialect = TemplateDialect.open(tmp_path / "model", {})
    turns = [Assistant("", turn.final, turn.calls) for turn in TURNS]
    limits = AgentLimits(context_tokens=20_000, sampled_tokens=8000)
    options = {"dialect": dialect, "limits": limits, "terms": Terms(effort="low")}
    trajectory = agent.play(script(dialect.stating_effort("low"), turns), **options)
    entries = turn_entries(trajectory)
    schemas = [schema_of(tool) for tool in agent.tools.values()]
    hints = place_hints(trajectory, [(entry, "copy old") for entry in entries], dialect, schemas)
    assert [hint.site for hint in hints] == [0, 1, 2, 3]
    for hint in hints:
        teacher = [*trajectory.segments[hint.segment].ids[: hint.at], *hint.inserted]
        assert dialect.decode(teacher).count("Reasoning: low") == 1
        assert hint.at > 10  # the level and all behind it are as the student read them

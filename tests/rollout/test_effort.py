"""Effort as a term: stated in one line, scaling the penalty, and its curve over difficulty."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from etude.core.policy import Context, Sample, Sampling, System
from etude.core.settings import HarnessSettings, RewardSettings
from etude.core.terms import Terms
from etude.forge.katas.task_source import katas
from etude.harness.prompt import state_effort
from etude.policies.scripted import Scripted, reference
from etude.rollout.effort_curve import effort_curve
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tokens.dialect import EFFORT_VARIABLE
from etude.tokens.template import TemplateDialect


def test_a_level_is_stated_in_one_line_and_scales_the_penalty(
    sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost],
) -> None:
    loop, host = sandboxes
    task = next(katas("train", 1, seed=8))
    seen: list[Context] = []

    class Watched(Scripted):
        async def sample(self, context: Context, sampling: Sampling) -> Sample:
            seen.append(context)
            return await super().sample(context, sampling)

    harness = HarnessSettings(system="", spec="none", effort={"low": 1, "high": 1})
    setup = build_setup(harness, RewardSettings(parts=[{"use": "tests"}, {"use": "effort", "levels": {"low": 3.0}}]))
    found = []
    for terms in (Terms(effort="low"), Terms(effort="high"), Terms()):
        policy = Watched(reference(task))
        outcome = loop.run_until_complete(run_rollout(task, policy, host, setup, terms=terms))
        assert isinstance(outcome, Scored) and outcome.passed
        assert isinstance(outcome.trajectory.messages[0], System)
        found.append(outcome)
    low, high, usual = found
    assert low.trajectory.messages[0].text.endswith("Effort: low.")  # type: ignore[union-attr]
    assert usual.trajectory.terms == Terms(effort="high")  # nothing asked for: the middle of what the recipe has
    assert low.parts["effort"] == pytest.approx(3 * high.parts["effort"]) and high.parts["effort"] < 0
    points = effort_curve(found)
    assert [(point.effort, point.rollouts) for point in points] == [("high", 2), ("low", 1)]
    assert all(point.pass_rate == 1 and point.mean_turns > 0 for point in points)


def test_a_template_that_knows_effort_states_it_itself(template_models: dict[str, Path], tmp_path: Path) -> None:
    assert state_effort("Mend.", "low", TemplateDialect.open(template_models["qwen3"], {}))[0] == "Mend.\nEffort: low."
    shutil.copytree(template_models["qwen3"], tmp_path / "model")
    template = (tmp_path / "model" / "chat_template.jinja").read_text()
    line = "{% if " + EFFORT_VARIABLE + " %}Reasoning: {{ " + EFFORT_VARIABLE + " }}{% endif %}"
    (tmp_path / "model" / "chat_template.jinja").write_text(line + template)
    dialect = TemplateDialect.open(tmp_path / "model", {})
    system, stating = state_effort("Mend.", "low", dialect)
    assert stating is not None and system == "Mend." and stating.fingerprint == dialect.fingerprint
    from etude.tokens.render import Rendered

    texts: list[Any] = []
    for one in (dialect, stating):
        rendered = Rendered()
        one.extend(rendered, [System(system)], open_turn=False)
        texts.append(one.decode(rendered.ids))
    assert "Reasoning: low" in texts[1] and "Reasoning" not in texts[0]

"""A checkpoint that somebody brings: its own shape, tokenizer, template and tool calls, through demos, sft and rl."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import transformers

from etude.core import recipe as recipes
from etude.core.run_files import read_metrics
from etude.model.checkpoint.directory import read_config, save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.pipeline.execute import execute
from etude.rollout.store import load_rollout, saved_rollouts
from etude.tokens.dialect import open_dialect

SETTINGS = [
    "run.threads=1",
    "demos.count=3",
    "demos.tasks={use='katas', split='train', levels=[1]}",
    "harness.tools=[{use='read'}, {use='edit'}, {use='finish'}]",
    "harness.limits.turns=8",
    "harness.limits.sampled_tokens=600",
    "harness.limits.malformed=1",
    "harness.limits.context_tokens=3000",
    "engine.max_length=3072",
    "engine.cache_tokens=32768",
    "engine.max_running=8",
    "sft.sequence=3000",
    "sft.batch_tokens=6000",
    "sft.micro_tokens=3000",
    "sft.epochs=1",
    "rl.tasks={use='katas', split='train', levels=[1]}",
    "reward.parts=[{use='tests'}, {use='effort', weight=0.1}]",  # so that random answers differ
    "rl.steps=2",
    "rl.groups=2",
    "rl.group=2",
    "rl.concurrency=4",
    "rl.eval_every=0",
    "rl.probe_tokens=64",
    "rl.micro_tokens=6000",
    "rl.keep_trajectories=4",
    "bench.tasks={use='katas', split='held_out', levels=[1]}",
]


@pytest.mark.parametrize(("template", "shape"), [("kimi", "kimi_k2"), ("qwen3", "qwen3_moe")])
def test_a_brought_checkpoint_is_fine_tuned_and_trained_in_its_own_words(
    template_models: dict[str, Path], template: str, shape: str, tmp_path: Path
) -> None:
    model, run = tmp_path / "model", tmp_path / "run"
    shutil.copytree(template_models[template], model)
    vocabulary = open_dialect(model).vocab_size
    small = ["layers=2", "width=32", "heads=2", "kv_heads=1", "head_dim=16", "mlp=48", "kv_rank=24", "rope_dim=8"]
    small += ["experts=4", "expert_mlp=24", f"shape={shape}", "tied=false", "max_positions=4096"]
    settings = recipes.load(None, [f"model.{setting}" for setting in small]).model
    save_model(model, Decoder(ModelConfig.from_settings(settings, vocabulary), seed=1))

    outcome = execute("rl", recipes.load(None, [*SETTINGS, f"sft.model={model}"]), run)

    assert outcome.done == ("demos", "sft", "rl") and not outcome.stopped
    facts = outcome.facts["rl"]
    assert facts["steps"] == 2 and facts["rollouts"] == 8 and facts["void"] == 0 and facts["probe_max"] <= 1e-3
    rows = [row for row in read_metrics(run) if row["stage"] == "rl"]
    assert all(row["load_max"] >= 1 for row in rows)
    for folder in saved_rollouts(run / "rl" / "trajectories"):
        trajectory = load_rollout(folder).trajectory
        assert trajectory is not None and trajectory.tokenizer == open_dialect(model).fingerprint
        assert trajectory.trainable and all(segment.routed for segment in trajectory.segments)
    assert outcome.model is not None and read_config(outcome.model).model_type == shape
    theirs = transformers.AutoTokenizer.from_pretrained(outcome.model)
    assert theirs.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    kind = transformers.DeepseekV3ForCausalLM if shape == "kimi_k2" else transformers.Qwen3MoeForCausalLM
    kind.from_pretrained(outcome.model)

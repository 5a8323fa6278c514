from pathlib import Path

import pytest

from etude.core import recipe
from etude.core.errors import EtudeError
from etude.core.run import Run
from etude.pipeline.execute import outline, unfinished
from etude.pipeline.find_model import find_model
from etude.pipeline.stages.table import STAGES, stages_for


def test_nano_is_about_a_million_parameters_and_a_few_minutes():
    nano = recipe.load("nano")
    (_, plan) = outline("pretrain", nano, Path("does-not-exist"))
    assert 0.9e6 < plan["parameters"] < 1.2e6
    assert 60 < plan["tokens"] / 10_000 < 300  # seconds at 10k tokens a second


def test_stages_bring_what_they_need_in_order():
    nano = recipe.load("nano")
    assert [stage.name for stage in stages_for("sft", nano)] == ["corpus", "pretrain", "demos", "sft"]
    tuned = recipe.load("nano", ["sft.model=somewhere"])
    assert [stage.name for stage in stages_for("sft", tuned)] == ["demos", "sft"]
    own = recipe.load("nano", ["sft.model=somewhere", "sft.data=chats.jsonl"])
    assert [stage.name for stage in stages_for("sft", own)] == ["sft"]
    everything = recipe.load("nano-long", ["mtp.steps=1", "extend.steps=1"])
    whole = [stage.name for stage in stages_for("report", everything)]
    assert whole == [name for name in STAGES if name in whole] and len(whole) == len(STAGES)


def test_every_recipe_key_is_read_by_a_stage_or_free_for_a_reason():
    read = [prefix for stage in STAGES.values() for prefix in stage.reads]
    free = {key for key in recipe.known_keys() if "." in key and not any(f"{key}.".startswith(f"{p}.") for p in read)}
    # where it runs and how it is saved, not what comes out
    machine = {"run.device", "run.threads", "run.keep_checkpoints", "run.save_in_background"}
    machine |= {"run.dashboard", "run.sinks", "run.gpu_hour"}  # what one sees of it
    machine |= {"run.compute", *(f"run.compute.{name}" for name in ("precision", "compile", "recompute"))}
    in_use = ("engine.", "endpoint.", "harness.", "grader.", "reward.", "base.")  # how a model is used later
    assert {key for key in free if not key.startswith((*in_use, "cluster."))} == machine  # and where it all runs


def test_the_model_of_a_run_is_its_last_stage(tmp_path: Path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(EtudeError, match="no checkpoint yet"):
        find_model(tmp_path)
    for name in ("pretrain-0000200", "sft-0000003", "sft-0000012"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert find_model(tmp_path).name == "sft-0000012"
    assert find_model(tmp_path / "checkpoints").name == "checkpoints"


@pytest.mark.parametrize(
    ("command", "finished", "goal"),
    [
        ("run", ["corpus"], "report"),  # killed between two stages of the whole way
        ("run", ["corpus", "pretrain", "report"], ""),
        ("pretrain", ["corpus"], "pretrain"),
        ("pretrain", ["corpus", "pretrain"], ""),
    ],
)
def test_a_resume_goes_to_what_the_last_command_was_for(
    command: str, finished: list[str], goal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["etude", command, "nano"])
    with Run.open(tmp_path / "run", recipe.to_dict(recipe.load("nano"))) as run:
        for stage in {"corpus", "pretrain", *finished}:
            run.begin(stage, ())
        for stage in finished:
            run.finish(stage)
    assert unfinished(tmp_path / "run") == goal

"""Stages that fine-tune: demonstrations, supervised fine-tuning on them or on the user's own, and more of the same."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.core.policy import Message
from etude.core.progress import track
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.core.settings import SftSettings
from etude.pipeline.find_model import find_model, prepare_device
from etude.pipeline.stages.base import (
    Stage,
    base_stage,
    check_agent,
    check_model,
    check_tasks,
    starting_model,
    trained_weights,
)

DEMOS = "demos.jsonl"  # in the run's folder
SHOWN = ("harness.tools", "harness.template")  # what a loaded model's chat template shows


def demonstrate(run: Run, recipe: Recipe) -> None:
    from etude.pipeline.demonstrations import make_demos
    from etude.rollout.rollout import build_setup, temporary_host
    from etude.rollout.trained_tasks import TrainedTasks
    from etude.tokens.conversations import write_conversations
    from etude.tokens.dialect import open_dialect

    folder = find_model(Path(recipe.sft.model)) if recipe.sft.model else run.path / "corpus" / "tokenizer"
    dialect = open_dialect(folder, recipe.harness.template)
    setup = build_setup(recipe.harness, recipe.reward, recipe.grader, recipe.audit, dialect=dialect)
    on_kept, began = partial(TrainedTasks(run.path).add, stage="demos"), time.monotonic()

    async def work() -> None:
        async with temporary_host(recipe.run.sandbox) as host:
            with track("demonstrating", recipe.demos.count, "tasks") as bar:
                made = await make_demos(
                    recipe.demos, recipe.run.seed, host, setup, bar.advance, recipe.harness, on_kept
                )
        write_conversations(run.path / DEMOS, made.conversations)
        seconds = round(time.monotonic() - began, 1)
        kept, left_out = len(made.conversations), {"failed": made.failed, "hacked": made.hacked, "void": made.void}
        for cause, count in made.void_causes.most_common(3):
            said = f"demos: {count} of {recipe.demos.count} demonstrations are void and left out: {cause}"
            print(said)
            run.say(said)
        run.finish("demos", kept=kept, **left_out, seconds=seconds)

    with run.stop_at_once():
        asyncio.run(work())


def check_demos(recipe: Recipe) -> None:
    check_tasks(recipe.demos.tasks, "demos.tasks")
    check_agent(recipe)


def outline_demos(recipe: Recipe) -> dict[str, Any]:
    return {"tasks": recipe.demos.count, "source": recipe.demos.tasks["use"], "sandbox": recipe.run.sandbox}


def fine_tune(run: Run, recipe: Recipe) -> None:
    start = starting_model(run, recipe.sft.model, base_stage(recipe), "sft")
    _train(run, recipe, "sft", start, recipe.sft)


def fine_tune_more(run: Run, recipe: Recipe) -> None:
    """What the time of reinforcement learning would have been worth in fine-tuning: as many more epochs as fit it."""
    # The third arm of the benchmark: more of the same for as long, so that a gain is not just more training.
    speeds = [row["tokens_per_second"] for row in read_metrics(run.path) if row["stage"] == "sft"]
    spent = sum(recipe.sft.batch_tokens / speed for speed in speeds)  # seconds
    # At least one epoch, so that the third arm exists in short runs too.
    epochs = max(1, round(recipe.sft.epochs * run.facts("rl")["seconds"] / spent))
    start = starting_model(run, recipe.rl.model, "sft", "rl")
    _train(run, recipe, "sft-more", start, replace(recipe.sft, epochs=epochs))


def _train(run: Run, recipe: Recipe, stage: str, start: Path, settings: SftSettings) -> None:
    device = prepare_device(recipe)
    from etude.corpus.mix import Mix
    from etude.harness.tools.base import schema_of
    from etude.harness.tools.table import build_tools
    from etude.learn.sft import sft
    from etude.model.checkpoint.directory import load_model
    from etude.model.checkpoint.outlines import load_outline
    from etude.tokens.conversations import read_conversations
    from etude.tokens.dialect import open_dialect
    from etude.tokens.text_tokenizer import open_tokenizer

    conversations = read_conversations(settings.data or run.path / DEMOS)
    if settings.data:  # somebody's own; demonstrations were looked at when they were made
        conversations = without_hacks(conversations, settings.data)
    ranks = recipe.cluster.learner
    decoder = load_model(start, device) if ranks.ranks == 1 else load_outline(start)
    dialect = open_dialect(start, recipe.harness.template)
    tools = [schema_of(tool) for tool in build_tools(recipe.harness.tools).values()]
    text = Mix(Path(settings.text), "train", settings.sequence, recipe.run.seed) if settings.text else None
    if text is not None and text.manifest.tokenizer != open_tokenizer(start).fingerprint:
        raise EtudeError(f"sft.text is {settings.text}, whose ids are of another tokenizer than that of {start}")
    sft(run, decoder, dialect, conversations, settings, recipe.run, stage, tools, ranks, text)


def without_hacks(conversations: list[tuple[Message, ...]], file: str) -> list[tuple[Message, ...]]:
    """Conversations in which the rules see no hack: a model that imitates one learns more than that one."""
    from etude.audit.auditor import Rules
    from etude.audit.blind_view import open_conversation

    rules = Rules()
    kept = [messages for messages in conversations if rules.inspect(open_conversation(messages)).verdict != "hack"]
    hacks = len(conversations) - len(kept)
    if hacks:
        print(f"{hacks} of {len(conversations)} conversations of {file} are hacks and left out")
    if not kept:
        raise EtudeError(f"every conversation of {file} is a hack by the rules of `etude audit`: nothing to learn from")
    return kept


def check_sft(recipe: Recipe) -> None:
    if recipe.sft.data and not Path(recipe.sft.data).is_file():
        raise EtudeError(f"sft.data is {recipe.sft.data!r}, which is not a file")
    if recipe.sft.text and not (Path(recipe.sft.text) / "manifest.json").is_file():
        raise EtudeError(f"sft.text is {recipe.sft.text!r}, which is no corpus: name the folder `corpus` of a run")
    check_model(recipe.sft.model)


def outline_sft(recipe: Recipe) -> dict[str, Any]:
    data = recipe.sft.data
    size = f" ({Path(data).stat().st_size / 1e6:.1f} MB)" if data else ""
    return {
        "from": recipe.sft.model or f"this run's {base_stage(recipe)}",
        "data": f"{data}{size}" if data else "this run's demonstrations",
        "epochs": recipe.sft.epochs,
        "trains": trained_weights(recipe.sft.lora),
        "device": recipe.run.device,
    }


DEMONSTRATIONS = Stage(
    "demos",
    reads=("run.seed", "run.sandbox", "demos", "sft.model", "harness", "grader"),
    needs=lambda recipe: () if recipe.sft.model else ("corpus",),
    work=demonstrate,
    outline=outline_demos,
    check=check_demos,
)
SFT = Stage(
    "sft",
    reads=("run.seed", "sft", *SHOWN),
    needs=lambda recipe: (
        *(() if recipe.sft.model else (base_stage(recipe),)),
        *(() if recipe.sft.data else ("demos",)),
    ),
    work=fine_tune,
    outline=outline_sft,
    check=check_sft,
)
SFT_MORE = Stage("sft-more", ("run.seed", "sft", *SHOWN), lambda _: ("rl",), fine_tune_more, outline_sft)

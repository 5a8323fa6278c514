"""The stages of the whole way: what each reads, needs and makes.

    corpus -> pretrain [-> mtp] [-> extend] -> demos -> sft
           -> bench-sft -> rl -> bench-rl [-> sft-more -> bench-sft-more] -> report

Joins the rooms, which do not know each other. Each room is imported only when its stage runs, so a stage that needs no
torch never loads it. In which order and whether a stage runs at all is decided in `pipeline`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core import process
from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.policy import Message
from etude.core.progress import track
from etude.core.recipe import Recipe
from etude.core.run import Run, checkpoints_in, read_metrics
from etude.core.settings import LoraSettings, SftSettings
from etude.model.config import ModelConfig
from etude.model.size import parameters, training_bytes

if TYPE_CHECKING:
    from etude.bench.result import BenchResult

DEMOS = "demos.jsonl"  # in the run's folder
BENCH = "bench"
BEST = "best"  # the model that did best on the evaluations of reinforcement learning


@dataclass(frozen=True)
class Stage:
    name: str
    reads: tuple[str, ...]  # recipe keys its result depends on: fixed once it has begun
    needs: Callable[[Recipe], tuple[str, ...]]  # stages whose output it takes
    work: Callable[[Run, Recipe], None]  # continues from whatever the run holds, and calls run.finish when complete
    outline: Callable[[Recipe], dict[str, Any]]  # what it would do, for --dry-run


def find_model(path: Path) -> Path:
    """The model directory meant by `path`: itself, or the best or newest checkpoint of a run's last stage."""
    if (path / "run.json").exists():
        saved = checkpoints_in(path)
        for name in ("rl", "sft", "extend", "mtp", "pretrain"):
            of_stage = [folder for stage, _, folder in saved if stage == name]
            if of_stage:
                best = path / BEST
                return best if name == "rl" and best.is_dir() else of_stage[-1]
        raise EtudeError(f"the run {path} has no checkpoint yet; train it first (etude pretrain)")
    if not path.is_dir():
        raise EtudeError(f"there is no model or run at {path}")
    return path


def recipe_of(path: Path, overrides: list[str]) -> Recipe:
    """The recipe of a run, of the run that a checkpoint lies in, or the defaults for a bare model; with overrides."""
    for folder in (path, *path.resolve().parents[:2]):
        if (folder / "run.json").exists() and (folder / "recipe.toml").exists():
            return recipes.load(str(folder / "recipe.toml"), overrides)
    return recipes.load(None, overrides)


def prepare(recipe: Recipe) -> str:
    """Set this process up for torch and return the recipe's device, checked."""
    from etude.model.torch_process import prepare as prepare_process

    prepare_process(recipe.run.threads)
    import torch

    try:
        torch.empty(0, device=recipe.run.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise EtudeError(f"run.device is {recipe.run.device!r}, which does not work here: {reason}") from None
    return recipe.run.device


def bench_model(model: Path, recipe: Recipe, backend: str, save: Path | None, what: str) -> BenchResult:
    """The checkpoint's result on the benchmark of the recipe, with progress and all cores."""
    from etude.bench.runner import run_bench
    from etude.rollout.rollout import temporary_host

    rollouts = (recipe.bench.count + recipe.bench.unseen_count) * recipe.bench.samples
    threads = recipe.run.threads or process.available_cores()

    async def work() -> BenchResult:
        async with temporary_host(backend) as host:
            with track(what, rollouts, "rollouts") as bar:
                return await run_bench(
                    model,
                    recipe,
                    host=host,
                    threads=threads,
                    save=save,
                    on_progress=lambda done, _: bar.advance(done - bar.done),
                )

    return asyncio.run(work())


def check_inputs(names: list[str], recipe: Recipe) -> None:
    """Refuse what would only be found wrong after hours."""
    if "corpus" in names:
        from etude.corpus.sources.table import open_sources

        open_sources(recipe.corpus.sources)
    if "pretrain" in names:
        ModelConfig.from_settings(recipe.model, recipe.tokens.vocab_size)
    for name, more in (("mtp", recipe.mtp), ("extend", recipe.extend)):
        if name in names and not more.steps:
            raise EtudeError(f"{name}.steps is 0, so there is nothing to train; give it a number of steps")
        if name in names and more.model:
            find_model(Path(more.model))
    if "sft" in names:
        if recipe.sft.data and not Path(recipe.sft.data).is_file():
            raise EtudeError(f"sft.data is {recipe.sft.data!r}, which is not a file")
        if recipe.sft.model:
            find_model(Path(recipe.sft.model))
    sources = [(recipe.demos.tasks, "demos"), (recipe.rl.tasks, "rl"), (recipe.bench.tasks, "bench-sft")]
    for spec, stage in sources:
        if stage in names:
            from etude.forge.curriculum.sources import open_source

            open_source(spec, f"{stage.partition('-')[0]}.tasks")
    if {"demos", "bench-sft", "rl"} & set(names):
        from etude.harness.tools.table import build_tools
        from etude.reward.compose import build_reward

        build_tools(recipe.harness.tools)
        build_reward(recipe.reward.parts)
    if "rl" in names:
        from etude.rl.algorithms.table import build_algorithm

        build_algorithm(recipe.rl.algorithm)
        if recipe.rl.model:
            find_model(Path(recipe.rl.model))


# The work of each stage


def _corpus(run: Run, recipe: Recipe) -> None:
    from etude.corpus.build import build_corpus
    from etude.corpus.sources.table import open_sources

    with run.stop_at_once():  # the build continues by itself where it was cut off
        sources = open_sources(recipe.corpus.sources)
        manifest = build_corpus(sources, recipe.corpus, recipe.tokens, run.path / "corpus", recipe.run.seed)
    kept = manifest.funnel.total("kept")
    run.finish(
        "corpus",
        files=kept.files,
        bytes=kept.bytes,
        train_tokens=manifest.tokens("train"),
        held_out_tokens=manifest.tokens("held_out"),
        seconds=round(sum(manifest.seconds.values()), 1),
        fingerprint=manifest.fingerprint,
    )


def _pretrain(run: Run, recipe: Recipe) -> None:
    device = prepare(recipe)
    from etude.corpus.manifest import load_manifest
    from etude.corpus.mix import Mix
    from etude.learn.pretrain import pretrain
    from etude.model.decoder import Decoder
    from etude.tokens.tokenizer import Tokenizer

    corpus = run.path / "corpus"
    vocabulary = Tokenizer.load(corpus / "tokenizer").vocab_size
    decoder = Decoder(ModelConfig.from_settings(recipe.model, vocabulary), seed=recipe.run.seed).to(device)
    sequence, seed = recipe.pretrain.sequence, recipe.run.seed
    train = Mix(corpus, "train", sequence, seed)
    evaluated = recipe.pretrain.eval_every and load_manifest(corpus).tokens("held_out")
    held_out = Mix(corpus, "held_out", sequence, seed) if evaluated else None
    pretrain(run, decoder, train, held_out, recipe.pretrain, recipe.run, corpus / "tokenizer")


def _mtp(run: Run, recipe: Recipe) -> None:
    device = prepare(recipe)
    from etude.corpus.manifest import load_manifest
    from etude.corpus.mix import Mix
    from etude.learn.mtp import train_heads
    from etude.model.checkpoint.directory import load_model

    corpus, settings, place = run.path / "corpus", recipe.mtp, (recipe.mtp.sequence, recipe.run.seed)
    start = find_model(Path(settings.model)) if settings.model else run.latest("pretrain")
    assert start is not None
    evaluated = settings.eval_every and load_manifest(corpus).tokens("held_out")
    train, held_out = Mix(corpus, "train", *place), Mix(corpus, "held_out", *place) if evaluated else None
    train_heads(run, load_model(start, device), train, held_out, settings, recipe.run, corpus / "tokenizer")


def _extend(run: Run, recipe: Recipe) -> None:
    device = prepare(recipe)
    from etude.bench.base.model_under_test import Subject
    from etude.bench.base.suite import memory_figures
    from etude.corpus.manifest import load_manifest
    from etude.corpus.mix import Mix
    from etude.learn.extend import extend, stretch
    from etude.model.checkpoint.directory import load_model
    from etude.model.decoder import Decoder
    from etude.tokens.dialect import open_dialect

    corpus, settings, seed = run.path / "corpus", recipe.extend, recipe.run.seed
    start = (
        find_model(Path(settings.model)) if settings.model else run.latest("mtp" if recipe.mtp.steps else "pretrain")
    )
    assert start is not None
    decoder, dialect = stretch(load_model(start, device), settings, recipe.pretrain.sequence), open_dialect(start)
    evaluated = load_manifest(corpus).tokens("held_out")
    held_out = Mix(corpus, "held_out", settings.sequence, seed, unit="repository") if evaluated else None
    train = Mix(corpus, "train", settings.sequence, seed, unit="repository")

    def memory(decoder: Decoder) -> dict[str, float]:
        return memory_figures(Subject.of_training(decoder, dialect, recipe.base.batch_tokens), recipe.base)

    extend(run, decoder, train, held_out, settings, recipe.run, corpus / "tokenizer", memory)


def _base_stage(recipe: Recipe) -> str:
    """The stage whose model is fine-tuned."""
    return "extend" if recipe.extend.steps else "mtp" if recipe.mtp.steps else "pretrain"


def _demos(run: Run, recipe: Recipe) -> None:
    from etude.pipeline.demonstrations import make_demos
    from etude.rollout.rollout import build_setup, temporary_host
    from etude.tokens.conversations import write_conversations
    from etude.tokens.dialect import open_dialect

    folder = find_model(Path(recipe.sft.model)) if recipe.sft.model else run.path / "corpus" / "tokenizer"
    dialect = open_dialect(folder, recipe.harness.template)
    setup = build_setup(recipe.harness, recipe.reward, recipe.grader, recipe.audit, dialect=dialect)
    began = time.monotonic()

    async def work() -> None:
        async with temporary_host(recipe.run.sandbox) as host:
            with track("demonstrating", recipe.demos.count, "tasks") as bar:
                made = await make_demos(recipe.demos, recipe.run.seed, host, setup, bar.advance)
        write_conversations(run.path / DEMOS, made.conversations)
        seconds = round(time.monotonic() - began, 1)
        kept, left_out = len(made.conversations), {"failed": made.failed, "hacked": made.hacked, "void": made.void}
        run.finish("demos", kept=kept, **left_out, seconds=seconds)

    with run.stop_at_once():
        asyncio.run(work())


def _sft(run: Run, recipe: Recipe) -> None:
    start = find_model(Path(recipe.sft.model)) if recipe.sft.model else run.latest(_base_stage(recipe))
    if start is None:
        raise EtudeError(f"the run {run.path} has no pretraining checkpoint to start from; set sft.model")
    _fine_tune(run, recipe, "sft", start, recipe.sft)


def _sft_more(run: Run, recipe: Recipe) -> None:
    """What the time of reinforcement learning would have been worth in fine-tuning: as many more epochs as fit it."""
    speeds = [row["tokens_per_second"] for row in read_metrics(run.path) if row["stage"] == "sft"]
    spent = sum(recipe.sft.batch_tokens / speed for speed in speeds)  # seconds
    epochs = max(1, round(recipe.sft.epochs * run.facts("rl")["seconds"] / spent))
    _fine_tune(run, recipe, "sft-more", _rl_start(run, recipe), replace(recipe.sft, epochs=epochs))


def _fine_tune(run: Run, recipe: Recipe, stage: str, start: Path, settings: SftSettings) -> None:
    device = prepare(recipe)
    from etude.harness.tools.base import schema_of
    from etude.harness.tools.table import build_tools
    from etude.learn.sft import sft
    from etude.model.checkpoint.directory import load_model
    from etude.tokens.conversations import read_conversations
    from etude.tokens.dialect import open_dialect

    conversations = read_conversations(settings.data or run.path / DEMOS)
    if settings.data:  # somebody's own; demonstrations were looked at when they were made
        conversations = _without_hacks(conversations, settings.data)
    decoder, dialect = load_model(start, device), open_dialect(start, recipe.harness.template)
    tools = [schema_of(tool) for tool in build_tools(recipe.harness.tools).values()]
    sft(run, decoder, dialect, conversations, settings, recipe.run, stage, tools)


def _without_hacks(conversations: list[tuple[Message, ...]], file: str) -> list[tuple[Message, ...]]:
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


def _rl(run: Run, recipe: Recipe) -> None:
    from etude.rl.orchestrator import train

    asyncio.run(train(run, recipe, _rl_start(run, recipe), backend=recipe.run.sandbox))


def _rl_start(run: Run, recipe: Recipe) -> Path:
    start = find_model(Path(recipe.rl.model)) if recipe.rl.model else run.latest("sft")
    if start is None:
        raise EtudeError(f"the run {run.path} has no fine-tuned checkpoint to start from; set rl.model")
    return start


def _bench_sft(run: Run, recipe: Recipe) -> None:
    _bench(run, recipe, "sft", _rl_start(run, recipe))


def _bench_rl(run: Run, recipe: Recipe) -> None:
    _bench(run, recipe, "rl", find_model(run.path))


def _bench_sft_more(run: Run, recipe: Recipe) -> None:
    latest = run.latest("sft-more")
    assert latest is not None
    _bench(run, recipe, "sft-more", latest)


def _bench(run: Run, recipe: Recipe, arm: str, model: Path) -> None:
    from etude.bench.result import summarise

    began = time.monotonic()
    with run.stop_at_once():
        result = bench_model(model, recipe, recipe.run.sandbox, run.path / BENCH / f"{arm}.json", f"benchmark of {arm}")
    seconds = round(time.monotonic() - began, 1)
    run.finish(f"bench-{arm}", model=str(model), **summarise(result), seconds=seconds)


def _report(run: Run, recipe: Recipe) -> None:
    from etude.bench.report.page import write_report
    from etude.bench.run_results import write_results

    write_results(run.path)
    run.finish("report", page=str(run.path / "report.html"))
    write_report(run.path)


# What each would do, for --dry-run


def _outline_corpus(recipe: Recipe) -> dict[str, Any]:
    limit = recipe.corpus.max_bytes
    return {
        "sources": ", ".join(str(table["use"]) for table in recipe.corpus.sources),
        "text": f"at most {limit / 1e6:.0f} MB" if limit else "no limit",
        "vocabulary": recipe.tokens.vocab_size,
    }


def _outline_pretrain(recipe: Recipe) -> dict[str, Any]:
    config = ModelConfig.from_settings(recipe.model, recipe.tokens.vocab_size)
    return {
        "parameters": parameters(config),
        "steps": recipe.pretrain.steps,
        "tokens": recipe.pretrain.steps * recipe.pretrain.batch_tokens,
        "memory": f"about {training_bytes(config, recipe.pretrain.micro_tokens) / 2**20:.0f} MiB",
        "device": recipe.run.device,
        "threads": recipe.run.threads or process.available_cores(),
    }


def _outline_mtp(recipe: Recipe) -> dict[str, Any]:
    mtp = recipe.mtp
    return {
        "from": mtp.model or "this run's pretraining",
        "heads": mtp.heads,
        "steps": mtp.steps,
        "tokens": mtp.steps * mtp.batch_tokens,
        "trains": "the heads alone",
        "device": recipe.run.device,
    }


def _outline_extend(recipe: Recipe) -> dict[str, Any]:
    extend = recipe.extend
    return {
        "from": extend.model or f"this run's {'mtp' if recipe.mtp.steps else 'pretraining'}",
        "sequence": extend.sequence,
        "steps": extend.steps,
        "tokens": extend.steps * extend.batch_tokens,
        "rope": f"theta {extend.rope_theta or recipe.model.rope_theta:g}, yarn {extend.yarn or 1:g}",
        "device": recipe.run.device,
    }


def _outline_demos(recipe: Recipe) -> dict[str, Any]:
    return {"tasks": recipe.demos.count, "source": recipe.demos.tasks["use"], "sandbox": recipe.run.sandbox}


def _trains(lora: LoraSettings) -> str:
    return f"adapters of rank {lora.rank} ({', '.join(lora.targets)})" if lora.rank else "all weights"


def _outline_sft(recipe: Recipe) -> dict[str, Any]:
    data = recipe.sft.data
    size = f" ({Path(data).stat().st_size / 1e6:.1f} MB)" if data else ""
    return {
        "from": recipe.sft.model or f"this run's {_base_stage(recipe)}",
        "data": f"{data}{size}" if data else "this run's demonstrations",
        "epochs": recipe.sft.epochs,
        "trains": _trains(recipe.sft.lora),
        "device": recipe.run.device,
    }


def _outline_rl(recipe: Recipe) -> dict[str, Any]:
    rl = recipe.rl
    return {
        "from": rl.model or "this run's fine-tuning",
        "steps": rl.steps,
        "rollouts": rl.steps * rl.groups * rl.group,
        "algorithm": rl.algorithm["use"],
        "trains": _trains(rl.lora),
        "staleness": rl.staleness,
        "limit": f"{rl.seconds:.0f} s" if rl.seconds else "none",
    }


def _outline_bench(recipe: Recipe) -> dict[str, Any]:
    bench = recipe.bench
    return {"tasks": bench.count, "unseen": bench.unseen_count, "samples": bench.samples}


SHOWN = ("harness.tools", "harness.template")  # what a loaded model's chat template shows
WORLD = ("harness", "grader", "engine.max_length")
STAGES = {
    stage.name: stage
    for stage in (
        Stage("corpus", ("run.seed", "tokens", "corpus"), lambda _: (), _corpus, _outline_corpus),
        Stage("pretrain", ("run.seed", "model", "pretrain"), lambda _: ("corpus",), _pretrain, _outline_pretrain),
        Stage(
            "mtp",
            ("run.seed", "mtp"),
            lambda r: ("corpus",) if r.mtp.model else ("corpus", "pretrain"),
            _mtp,
            _outline_mtp,
        ),
        Stage(
            "extend",
            ("run.seed", "extend", "base"),
            lambda r: ("corpus",) if r.extend.model else ("corpus", "mtp" if r.mtp.steps else "pretrain"),
            _extend,
            _outline_extend,
        ),
        Stage(
            "demos",
            ("run.seed", "run.sandbox", "demos", "sft.model", "harness", "grader"),
            lambda r: () if r.sft.model else ("corpus",),
            _demos,
            _outline_demos,
        ),
        Stage(
            "sft",
            ("run.seed", "sft", *SHOWN),
            lambda r: (*(() if r.sft.model else (_base_stage(r),)), *(() if r.sft.data else ("demos",))),
            _sft,
            _outline_sft,
        ),
        Stage(
            "bench-sft",
            ("run.sandbox", "bench", "rl.model", *WORLD),
            lambda r: () if r.rl.model else ("sft",),
            _bench_sft,
            _outline_bench,
        ),
        Stage(
            "rl",
            ("run.seed", "run.sandbox", "rl", "reward", "audit", "bench.tasks", *WORLD),
            lambda r: () if r.rl.model else ("sft",),
            _rl,
            _outline_rl,
        ),
        Stage("bench-rl", ("run.sandbox", "bench", *WORLD), lambda _: ("rl",), _bench_rl, _outline_bench),
        Stage("sft-more", ("run.seed", "sft", *SHOWN), lambda _: ("rl",), _sft_more, _outline_sft),
        Stage(
            "bench-sft-more",
            ("run.sandbox", "bench", *WORLD),
            lambda _: ("sft-more",),
            _bench_sft_more,
            _outline_bench,
        ),
        Stage(
            "report",
            (),
            lambda r: ("bench-sft", "bench-rl", *(("bench-sft-more",) if r.bench.sft_more else ())),
            _report,
            lambda _: {"page": "report.html"},
        ),
    )
}

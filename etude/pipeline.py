"""Stages in order, each with its inputs and outputs: corpus -> pretrain -> sft.

Joins the rooms, which do not know each other. A stage that is finished is skipped, one that is not continues, and
asking for a stage brings everything it needs. Each room is imported only when its stage runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude import process
from etude import recipe as recipes
from etude.errors import EtudeError
from etude.model.config import ModelConfig
from etude.policy import Sampling, Version
from etude.progress import track
from etude.recipe import Recipe
from etude.run import Run, check_recipe, checkpoints_in, read_facts


@dataclass(frozen=True)
class Stage:
    name: str
    reads: tuple[str, ...]  # recipe keys its result depends on: fixed once it has begun
    needs: Callable[[Recipe], tuple[str, ...]]  # stages whose output it takes
    work: Callable[[Run, Recipe], None]  # continues from whatever the run holds, and calls run.finish when complete
    outline: Callable[[Recipe], dict[str, Any]]  # what it would do, for --dry-run


@dataclass(frozen=True)
class Outcome:
    """What a command did to a run."""

    path: Path
    done: tuple[str, ...]  # stages completed by this command
    before: tuple[str, ...]  # stages that were finished already
    stopped: str  # the stage that was interrupted, or nothing
    facts: dict[str, dict[str, Any]]  # of each finished stage
    model: Path | None  # the newest checkpoint


def stages_for(target: str, recipe: Recipe) -> list[Stage]:
    """The target and everything it needs, in order."""
    stage = STAGES[target]
    ordered = [found for need in stage.needs(recipe) for found in stages_for(need, recipe)]
    return [*ordered, stage]


def execute(target: str, recipe: Recipe, path: Path, *, fresh: bool = False) -> Outcome:
    """Bring the run at `path` to the end of `target`."""
    stages = stages_for(target, recipe)
    _inputs(target, recipe)
    with Run.open(path, recipes.to_dict(recipe), fresh=fresh) as run:
        before = tuple(stage.name for stage in stages if run.finished(stage.name))
        done: list[str] = []
        stopped = ""
        for stage in stages:
            if stage.name in before:
                continue
            if not run.stopping:
                run.begin(stage.name, stage.reads)
                stage.work(run, recipe)
            if not run.finished(stage.name):
                stopped = stage.name
                break
            done.append(stage.name)
        facts = {stage.name: run.facts(stage.name) for stage in stages if run.finished(stage.name)}
        saved = [folder for stage in stages for folder in run.checkpoints(stage.name)]
        return Outcome(run.path, tuple(done), before, stopped, facts, saved[-1] if saved else None)


def outline(target: str, recipe: Recipe, path: Path, *, fresh: bool = False) -> list[dict[str, Any]]:
    """What `execute` would do, stage by stage, without doing it; refuses what `execute` would refuse."""
    stages = stages_for(target, recipe)
    _inputs(target, recipe)
    begun: dict[str, Any] = {}
    if (path / "run.json").exists() and not fresh:
        facts = read_facts(path)
        check_recipe(path, facts, recipes.to_dict(recipe))
        begun = facts["stages"]
    rows = []
    for stage in stages:
        steps = [step for name, step, _ in checkpoints_in(path) if name == stage.name] if begun else []
        if "finished" in begun.get(stage.name, {}):
            state = "finished, nothing to do"
        else:
            state = f"continues after step {steps[-1]}" if steps else "starts"
        rows.append({"stage": stage.name, "state": state, **stage.outline(recipe)})
    return rows


def find_model(path: Path) -> Path:
    """The model directory meant by `path`: itself, or the newest checkpoint of a run's last stage."""
    if (path / "run.json").exists():
        saved = checkpoints_in(path)
        for name in reversed(STAGES):
            of_stage = [folder for stage, _, folder in saved if stage == name]
            if of_stage:
                return of_stage[-1]
        raise EtudeError(f"the run {path} has no checkpoint yet; train it first (etude pretrain)")
    if not path.is_dir():
        raise EtudeError(f"there is no model or run at {path}")
    return path


def recipe_of(path: Path, overrides: list[str]) -> Recipe:
    """The recipe of a run, or the defaults for a bare model directory, with overrides."""
    source = path / "recipe.toml"
    return recipes.load(str(source) if source.exists() else None, overrides)


def sample_text(path: Path, prompt: str, sampling: Sampling, overrides: list[str]) -> dict[str, Any]:
    """Continue a text with the model at `path`, in this process."""
    recipe, model = recipe_of(path, overrides), find_model(path)
    device = prepare(recipe)
    from etude.engine.engine import Engine
    from etude.model.checkpoint import load_model
    from etude.tokens.tokenizer import Tokenizer

    decoder, tokenizer = load_model(model, device), Tokenizer.load(model)
    engine = Engine(decoder, recipe.engine, Version(0, 0))
    sampling = replace(sampling, stop_ids=(tokenizer.control["end_of_text"],))
    request = engine.submit(tokenizer.encode(prompt), sampling)
    with track("sampling", sampling.max_tokens, "tokens") as bar:
        while not request.finished:
            engine.step()
            bar.advance()
    if request.error is not None:
        raise EtudeError(request.error)
    ids = request.sampled
    return {"model": str(model), "prompt": prompt, "text": tokenizer.decode(ids), "ids": ids, "stop": request.stop}


def serve_model(path: Path, overrides: list[str], host: str, port: int) -> None:
    """Serve the model at `path` over HTTP until interrupted."""
    recipe, model = recipe_of(path, overrides), find_model(path)
    device = prepare(recipe)
    from etude.engine.server import serve

    serve(model, recipe.engine, device=device, host=host, port=port)


# The stages


def _corpus(run: Run, recipe: Recipe) -> None:
    from etude.corpus.build import build_corpus
    from etude.corpus.sources import open_sources

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
    from etude.corpus.mix import Mix
    from etude.learn.pretrain import pretrain
    from etude.model.decoder import Decoder
    from etude.tokens.tokenizer import Tokenizer

    corpus = run.path / "corpus"
    vocabulary = Tokenizer.load(corpus / "tokenizer").vocab_size
    decoder = Decoder(ModelConfig.from_settings(recipe.model, vocabulary), seed=recipe.run.seed).to(device)
    sequence, seed = recipe.pretrain.sequence, recipe.run.seed
    train = Mix(corpus, "train", sequence, seed)
    held_out = Mix(corpus, "held_out", sequence, seed) if recipe.pretrain.eval_every else None
    pretrain(run, decoder, train, held_out, recipe.pretrain, recipe.run, corpus / "tokenizer")


def _sft(run: Run, recipe: Recipe) -> None:
    device = prepare(recipe)
    from etude.learn.sft import sft
    from etude.model.checkpoint import load_model
    from etude.tokens.conversations import read_conversations
    from etude.tokens.tokenizer import Tokenizer

    start = find_model(Path(recipe.sft.model)) if recipe.sft.model else run.latest("pretrain")
    if start is None:
        raise EtudeError(f"the run {run.path} has no pretraining checkpoint to start from; set sft.model")
    conversations = read_conversations(recipe.sft.data)
    sft(run, load_model(start, device), Tokenizer.load(start), conversations, recipe.sft, recipe.run)


def prepare(recipe: Recipe) -> str:
    """Set this process up for torch and return the recipe's device, checked."""
    process.prepare(recipe.run.threads)
    import torch

    try:
        torch.empty(0, device=recipe.run.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise EtudeError(f"run.device is {recipe.run.device!r}, which does not work here: {reason}") from None
    return recipe.run.device


def _inputs(target: str, recipe: Recipe) -> None:
    """Refuse what would only be found wrong after hours."""
    names = [stage.name for stage in stages_for(target, recipe)]
    if "corpus" in names:
        from etude.corpus.sources import open_sources

        open_sources(recipe.corpus.sources)
    if "pretrain" in names:
        ModelConfig.from_settings(recipe.model, recipe.tokens.vocab_size)
    if "sft" in names:
        if not recipe.sft.data:
            raise EtudeError("sft.data is empty; give a JSONL file of conversations (sft.data=chats.jsonl)")
        if not Path(recipe.sft.data).is_file():
            raise EtudeError(f"sft.data is {recipe.sft.data!r}, which is not a file")
        if recipe.sft.model:
            find_model(Path(recipe.sft.model))


# Estimates for --dry-run


def parameters(config: ModelConfig) -> int:
    """Weights of a decoder of this shape, without building it."""
    width, head = config.hidden_size, config.head_dim
    query, key = config.num_attention_heads * head, config.num_key_value_heads * head
    attention = width * (2 * query + 2 * key) + (2 * head if config.qk_norm else 0)
    bias = query + 2 * key + width if config.attention_bias else 0
    block = attention + bias + 3 * width * config.intermediate_size + 2 * width
    table = config.vocab_size * width * (1 if config.tie_word_embeddings else 2)
    ahead = config.num_nextn_predict_layers * (block + 2 * width * width + 3 * width)
    return table + config.num_hidden_layers * block + width + ahead


def training_bytes(config: ModelConfig, micro_tokens: int) -> int:
    """A rough need of memory: weights, gradients and two moments, activations of one micro-batch, its logits."""
    width = 10 * config.hidden_size + 3 * config.intermediate_size
    activations = micro_tokens * config.cache_layers * width
    logits = 3 * micro_tokens * config.vocab_size
    return 4 * (4 * parameters(config) + activations + logits)


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


def _outline_sft(recipe: Recipe) -> dict[str, Any]:
    return {
        "from": recipe.sft.model or "this run's pretraining",
        "data": recipe.sft.data,
        "size": f"{Path(recipe.sft.data).stat().st_size / 1e6:.1f} MB",
        "epochs": recipe.sft.epochs,
        "device": recipe.run.device,
    }


STAGES = {
    stage.name: stage
    for stage in (
        Stage("corpus", ("run.seed", "tokens", "corpus"), lambda _: (), _corpus, _outline_corpus),
        Stage("pretrain", ("run.seed", "model", "pretrain"), lambda _: ("corpus",), _pretrain, _outline_pretrain),
        Stage("sft", ("run.seed", "sft"), lambda r: () if r.sft.model else ("pretrain",), _sft, _outline_sft),
    )
}

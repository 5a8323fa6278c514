"""Stages on plain text: the corpus, pretraining on it, heads for speculation, longer sequences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from etude.core import process
from etude.core.errors import EtudeError
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.core.settings import ExtendSettings, MtpSettings, PretrainSettings
from etude.model.config import ModelConfig
from etude.model.size import parameters, training_bytes
from etude.pipeline.estimate import BF16, CHUNK_LOGITS, WEIGHT
from etude.pipeline.find_model import find_model, prepare_device
from etude.pipeline.stages.base import Stage, check_model, planned_model, starting_model, trained_weights
from etude.tokens.text_tokenizer import check_vocabulary, open_tokenizer

if TYPE_CHECKING:
    from etude.corpus.mix import Mix
    from etude.learn.pretrain import Documents


def build(run: Run, recipe: Recipe) -> None:
    from etude.corpus.build import build_corpus
    from etude.corpus.sources.table import open_sources

    with run.stop_at_once():  # the build continues by itself where it was cut off
        sources = open_sources(recipe.corpus.sources)
        out, seed = run.path / "corpus", recipe.run.seed
        manifest = build_corpus(sources, recipe.corpus, recipe.tokens, out, seed, brought_model(recipe))
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


def brought_model(recipe: Recipe) -> Path | None:
    """The checkpoint whose tokenizer the corpus is encoded with: the first that a stage on plain text begins with."""
    given = recipe.pretrain.model or recipe.mtp.model or recipe.extend.model
    return find_model(Path(given)) if given else None


def check_sources(recipe: Recipe) -> None:
    from etude.corpus.quality_rules import check_quality
    from etude.corpus.sources.table import open_sources

    check_quality(recipe.corpus.quality)
    open_sources(recipe.corpus.sources)
    brought = brought_model(recipe)
    if brought is not None:
        from etude.model.checkpoint.directory import read_config

        check_vocabulary(open_tokenizer(brought), read_config(brought).vocab_size, brought)


def outline_corpus(recipe: Recipe) -> dict[str, Any]:
    limit, brought = recipe.corpus.max_bytes, brought_model(recipe)
    tokenizer = open_tokenizer(brought) if brought is not None else None
    whole = tokenizer is not None and tokenizer.fim is None and recipe.corpus.fim_rate > 0
    return {
        "sources": ", ".join(str(table["use"]) for table in recipe.corpus.sources),
        "text": f"at most {limit / 1e6:.0f} MB" if limit else "no limit",
        "tokenizer": f"that of {brought}" if brought is not None else "trained on this corpus",
        "vocabulary": tokenizer.vocab_size if tokenizer is not None else recipe.tokens.vocab_size,
    } | ({"fill-in-the-middle": "none, the tokenizer has no tokens for it"} if whole else {})


def pretrain(run: Run, recipe: Recipe) -> None:
    device = prepare_device(recipe)
    from etude.learn.pretrain import pretrain
    from etude.model.checkpoint.directory import load_model
    from etude.model.checkpoint.outlines import draw_outline, load_outline
    from etude.model.decoder import Decoder

    tokenizer, settings, ranks = run.path / "corpus" / "tokenizer", recipe.pretrain, recipe.cluster.learner
    if settings.model:
        start = find_model(Path(settings.model))
        check_tokenizer(run, start)
        decoder = load_model(start, device) if ranks.ranks == 1 else load_outline(start)
    else:
        shape = ModelConfig.from_settings(recipe.model, open_tokenizer(tokenizer).vocab_size)
        if ranks.ranks == 1:
            decoder = Decoder(shape, seed=recipe.run.seed).to(device)
        else:  # a process might not have the memory for all of it
            decoder = draw_outline(shape, recipe.run.seed)
    train, held_out = open_mixes(run, recipe, settings, bool(settings.eval_every))
    by_source = held_out_by_source(run, recipe, settings) if held_out is not None else {}
    pretrain(run, decoder, train, held_out, settings, recipe.run, tokenizer, by_source=by_source, ranks=ranks)


def check_tokenizer(run: Run, start: Path) -> None:
    """Refuses to train a model on ids of another tokenizer, or on ids that it has no embeddings for."""
    from etude.model.checkpoint.directory import read_config

    own, corpus = open_tokenizer(start), open_tokenizer(run.path / "corpus" / "tokenizer")
    check_vocabulary(own, read_config(start).vocab_size, start)
    if own.fingerprint != corpus.fingerprint:
        raise EtudeError(
            f"the corpus in {run.path / 'corpus'} is encoded with another tokenizer than that of {start}: "
            "build it anew in another run, whose pretrain.model, mtp.model or extend.model is this checkpoint"
        )


def pretrained_shape(recipe: Recipe) -> ModelConfig:
    if not recipe.pretrain.model:
        return ModelConfig.from_settings(recipe.model, recipe.tokens.vocab_size)
    from etude.model.checkpoint.directory import read_config

    return read_config(find_model(Path(recipe.pretrain.model)))


def check_shape(recipe: Recipe) -> None:
    from etude.corpus.quality_rules import check_phase

    check_phase("pretrain", recipe.pretrain.quality, recipe.corpus.quality)
    config = pretrained_shape(recipe)
    if recipe.pretrain.model:
        start = find_model(Path(recipe.pretrain.model))
        check_vocabulary(open_tokenizer(start), config.vocab_size, start)
    elif recipe.pretrain.lora.rank:
        raise EtudeError("pretrain.lora adapts a checkpoint; set pretrain.model, or pretrain.lora.rank to 0")


def outline_pretrain(recipe: Recipe) -> dict[str, Any]:
    config = pretrained_shape(recipe)
    return {
        "from": recipe.pretrain.model or "random weights",
        "trains": trained_weights(recipe.pretrain.lora),
        "text": outline_text(recipe.pretrain),
        "parameters": parameters(config),
        "steps": recipe.pretrain.steps,
        "tokens": recipe.pretrain.steps * recipe.pretrain.batch_tokens,
        "memory": planned_memory(config, recipe, recipe.pretrain.micro_tokens, recipe.pretrain.lora.rank),
        "device": recipe.run.device,
        "threads": recipe.run.threads or process.available_cores(),
    }


def outline_text(settings: PretrainSettings | MtpSettings | ExtendSettings) -> str:
    """The mix of a phase and its least quality."""
    mix = ", ".join(f"{name} {share:g}" for name, share in settings.weights.items()) or "sources by their weights"
    return f"{mix}; quality from level {settings.quality} on" if settings.quality else mix


def planned_memory(config: ModelConfig, recipe: Recipe, micro_tokens: int, rank: int = 0) -> str:
    """What the learner needs, by the same estimate as reinforcement learning's."""
    on_cpu, compute = recipe.run.device == "cpu", recipe.run.compute
    small = compute.precision != "float32" and not (on_cpu and compute.precision == "auto")
    size = training_bytes(
        config,
        micro_tokens,
        WEIGHT,
        rank,
        activation=BF16 if small else WEIGHT,
        recompute=compute.recompute,
        chunk=None if on_cpu else CHUNK_LOGITS,
    )
    return f"about {size / 2**20:.0f} MiB" if size < 2**34 else f"about {size / 2**30:.0f} GiB"


def train_mtp_heads(run: Run, recipe: Recipe) -> None:
    device, settings = prepare_device(recipe), recipe.mtp
    from etude.learn.mtp import train_heads
    from etude.model.checkpoint.directory import load_model
    from etude.model.checkpoint.outlines import load_outline

    start = starting_model(run, settings.model, "pretrain", "mtp")
    check_tokenizer(run, start)
    train, held_out = open_mixes(run, recipe, settings, bool(settings.eval_every))
    tokenizer, ranks = run.path / "corpus" / "tokenizer", recipe.cluster.learner
    decoder = load_model(start, device) if ranks.ranks == 1 else load_outline(start)
    train_heads(run, decoder, train, held_out, settings, recipe.run, tokenizer, ranks)


def outline_mtp(recipe: Recipe) -> dict[str, Any]:
    mtp = recipe.mtp
    return {
        "from": mtp.model or "this run's pretraining",
        "heads": mtp.heads,
        "text": outline_text(mtp),
        "steps": mtp.steps,
        "tokens": mtp.steps * mtp.batch_tokens,
        "trains": "the heads alone",
        "device": recipe.run.device,
    }


def extend_context(run: Run, recipe: Recipe) -> None:
    device, settings = prepare_device(recipe), recipe.extend
    from etude.bench.base.model_under_test import ModelUnderTest
    from etude.bench.base.suite import memory_figures
    from etude.learn.extend import extend, stretch
    from etude.model.checkpoint.directory import load_model
    from etude.model.checkpoint.outlines import load_outline
    from etude.model.decoder import Decoder
    from etude.tokens.dialect import open_dialect

    start = starting_model(run, settings.model, _before_extend(recipe), "extend")
    check_tokenizer(run, start)
    ranks, dialect = recipe.cluster.learner, open_dialect(start)
    known = load_model(start, device) if ranks.ranks == 1 else load_outline(start)
    decoder = stretch(known, settings, recipe.pretrain.sequence)
    # Whole repositories: single files are shorter than the sequences that are to be learnt.
    train, held_out = open_mixes(run, recipe, settings, True, "repository")

    def memory(decoder: Decoder) -> dict[str, float]:
        return memory_figures(ModelUnderTest.of_training(decoder, dialect, recipe.base.batch_tokens), recipe.base)

    extend(run, decoder, train, held_out, settings, recipe.run, run.path / "corpus" / "tokenizer", memory, ranks)


def outline_extend(recipe: Recipe) -> dict[str, Any]:
    extend = recipe.extend
    return {
        "from": extend.model or f"this run's {'mtp' if recipe.mtp.steps else 'pretraining'}",
        "sequence": extend.sequence,
        "text": outline_text(extend),
        "steps": extend.steps,
        "tokens": extend.steps * extend.batch_tokens,
        "rope": f"theta {extend.rope_theta or recipe.model.rope_theta:g}, yarn {extend.yarn or 1:g}",
        "memory": planned_memory(_extended_shape(recipe), recipe, extend.micro_tokens),
        "device": recipe.run.device,
    }


def _extended_shape(recipe: Recipe) -> ModelConfig:
    """The shape that is extended, with the heads that it has by then."""
    if recipe.extend.model:
        from etude.model.checkpoint.directory import read_config

        return read_config(planned_model(recipe.extend.model))
    config = pretrained_shape(recipe)
    return replace(config, num_nextn_predict_layers=recipe.mtp.heads) if recipe.mtp.steps else config


def open_mixes(
    run: Run,
    recipe: Recipe,
    settings: PretrainSettings | MtpSettings | ExtendSettings,
    evaluate: bool,
    unit: Literal["file", "repository"] = "file",
) -> tuple[Mix, Mix | None]:
    """The training text, and the held-out one where there is any and it is asked for."""
    from etude.corpus.manifest import load_manifest
    from etude.corpus.mix import Mix

    corpus, seed = run.path / "corpus", recipe.run.seed
    held_out = evaluate and load_manifest(corpus).tokens("held_out")
    length, weights = settings.sequence, settings.weights
    train = Mix(corpus, "train", length, seed, unit, weights, settings.quality)
    return train, Mix(corpus, "held_out", length, seed, unit, weights) if held_out else None


def held_out_by_source(run: Run, recipe: Recipe, settings: PretrainSettings) -> dict[str, Documents]:
    """The held-out text of each source of the corpus, where there are several, those that are not trained on too.

    And code of the user's own, `private`, which is measured and is in no corpus.
    """
    from etude.corpus.mix import Mix

    corpus, seed, length = run.path / "corpus", recipe.run.seed, settings.sequence
    names = Mix(corpus, "held_out", length, seed).sources
    found: dict[str, Documents] = {}
    if len(names) > 1:
        found |= {name: Mix(corpus, "held_out", length, seed, weights={name: 1.0}) for name in names}
    if settings.private:
        from etude.bench.base.code_text import read_code
        from etude.bench.base.private_code import PrivateCode

        # Bytes enough for one evaluation, whatever the tokenizer: a token stands for a few of them.
        code = read_code(settings.private, 16 * settings.eval_tokens)
        found["private"] = PrivateCode(code, open_tokenizer(corpus / "tokenizer"), length)
    return found


def _before_extend(recipe: Recipe) -> str:
    return "mtp" if recipe.mtp.steps else "pretrain"


def _check_steps(name: str, settings: MtpSettings | ExtendSettings, recipe: Recipe) -> None:
    from etude.corpus.quality_rules import check_phase

    check_phase(name, settings.quality, recipe.corpus.quality)
    if not settings.steps:
        raise EtudeError(f"{name}.steps is 0, so there is nothing to train; give it a number of steps")
    check_model(settings.model)


CORPUS = Stage(
    "corpus",
    reads=("run.seed", "tokens", "corpus"),
    needs=lambda _: (),
    work=build,
    outline=outline_corpus,
    check=check_sources,
)
PRETRAIN = Stage(
    "pretrain",
    reads=("run.seed", "model", "pretrain"),
    needs=lambda _: ("corpus",),
    work=pretrain,
    outline=outline_pretrain,
    check=check_shape,
)
MTP = Stage(
    "mtp",
    reads=("run.seed", "mtp"),
    needs=lambda recipe: ("corpus",) if recipe.mtp.model else ("corpus", "pretrain"),
    work=train_mtp_heads,
    outline=outline_mtp,
    check=lambda recipe: _check_steps("mtp", recipe.mtp, recipe),
)
EXTEND = Stage(
    "extend",
    reads=("run.seed", "extend", "base"),
    needs=lambda recipe: ("corpus",) if recipe.extend.model else ("corpus", _before_extend(recipe)),
    work=extend_context,
    outline=outline_extend,
    check=lambda recipe: _check_steps("extend", recipe.extend, recipe),
)

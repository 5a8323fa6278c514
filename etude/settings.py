"""Every setting of a recipe, section by section: type, default, unit and one line each.

Plain dataclasses without third-party imports, so that model, learn and engine run where only torch is
installed. `recipe.py` reads TOML into them, refuses unknown keys and prints this documentation.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal


def setting(default: Any, doc: str) -> Any:
    """A field with its one line of documentation (`etude recipe show NAME --explain` prints it)."""
    if isinstance(default, list | dict) or dataclasses.is_dataclass(default):
        return dataclasses.field(default_factory=lambda: dataclasses.replace(default) if dataclasses.is_dataclass(default) else type(default)(default), metadata={"doc": doc})  # type: ignore[type-var]
    return dataclasses.field(default=default, metadata={"doc": doc})


@dataclass(frozen=True)
class RunSettings:
    """The machine and the run as a whole."""

    seed: int = setting(0, "every random choice of the run follows from it")
    device: str = setting("cpu", "torch device of learner and engine: cpu, cuda, cuda:1")
    threads: int = setting(0, "torch threads of each process; 0 takes all cores")
    keep_checkpoints: int = setting(2, "newest checkpoints kept; older ones are removed after each save")


@dataclass(frozen=True)
class TokensSettings:
    """The byte-level BPE tokenizer that the run trains."""

    vocab_size: int = setting(2048, "entries, control tokens included")
    train_bytes: int = setting(4_000_000, "bytes of corpus the tokenizer is trained on")


@dataclass(frozen=True)
class ModelSettings:
    """The shape of a new decoder."""

    width: int = setting(128, "hidden size")
    layers: int = setting(4, "decoder blocks")
    heads: int = setting(4, "query heads")
    kv_heads: int = setting(2, "key and value heads (grouped-query attention)")
    head_dim: int = setting(32, "dimensions of one head")
    mlp: int = setting(384, "hidden size of the SwiGLU block")
    rope_theta: float = setting(10_000.0, "base of the rotary frequencies")
    max_positions: int = setting(4096, "longest sequence the shape promises")
    qk_norm: bool = setting(True, "RMSNorm on queries and keys (the qwen3 shape)")
    bias: bool = setting(False, "bias on the query, key, value and output projections")
    tied: bool = setting(True, "the output head shares the embedding")
    mtp_layers: int = setting(0, "multi-token-prediction modules")


@dataclass(frozen=True)
class CorpusSettings:
    """Code -> filtered -> deduplicated -> decontaminated -> token shards."""

    sources: list[dict[str, Any]] = setting([{"use": "stdlib"}], "components that yield documents: stdlib, folder, archive, git, or ./mine.py:Mine; `weight` is its share of the mix")
    licenses: list[str] = setting(["permissive", "unknown"], "licence classes kept: permissive, copyleft, unknown")
    max_bytes: int = setting(40_000_000, "stop reading after this many bytes of text; 0 is no limit")
    near_threshold: float = setting(0.7, "Jaccard similarity above which a file is a near-duplicate; 1 turns it off")
    decontaminate: list[str] = setting([], "files or folders of texts that must not be in the corpus")
    decontaminate_ngram: int = setting(13, "words in a row that count as an overlap")
    held_out: float = setting(0.02, "share of repositories, and of files, kept for evaluation")
    fim_rate: float = setting(0.3, "share of documents turned into fill-in-the-middle")
    shard_tokens: int = setting(4_000_000, "tokens in one shard file")


@dataclass(frozen=True)
class OptimSettings:
    """The optimiser of one stage."""

    matrices: Literal["muon", "adamw"] = setting("muon", "optimiser of the matrices inside the blocks; everything else uses AdamW")
    lr: float = setting(3e-3, "peak learning rate of AdamW")
    muon_lr: float = setting(2e-2, "peak learning rate of Muon, in RMS of the update")
    schedule: Literal["cosine", "linear", "constant", "wsd"] = setting("wsd", "shape of the decay; wsd is warm-up, stable, decay")
    warmup: float = setting(0.02, "share of the steps spent warming up")
    decay: float = setting(0.3, "share of the steps spent in the final decay (wsd)")
    final_lr: float = setting(0.05, "learning rate at the end, as a share of the peak")
    betas: tuple[float, float] = setting((0.9, 0.95), "AdamW moments")
    eps: float = setting(1e-8, "AdamW denominator")
    momentum: float = setting(0.95, "Muon momentum (Nesterov)")
    weight_decay: float = setting(0.05, "decoupled weight decay of the matrices")
    clip: float = setting(1.0, "largest global gradient norm; 0 turns clipping off")
    ema: float = setting(0.0, "decay of the averaged weights kept for twins; 0 keeps none")


@dataclass(frozen=True)
class PretrainSettings:
    """Continued pretraining on token shards."""

    steps: int = setting(600, "optimiser steps")
    batch_tokens: int = setting(8192, "tokens in one optimiser step")
    micro_tokens: int = setting(4096, "tokens in one forward and backward")
    sequence: int = setting(512, "longest training sequence, tokens")
    eval_every: int = setting(100, "steps between evaluations on the held-out split; 0 turns them off")
    eval_tokens: int = setting(65_536, "tokens of one evaluation")
    save_every: int = setting(100, "steps between checkpoints")
    optim: OptimSettings = setting(OptimSettings(), "optimiser")


@dataclass(frozen=True)
class SftSettings:
    """Supervised fine-tuning on conversations: loss on the assistant's tokens only."""

    data: str = setting("", "JSONL file of conversations, one a line")
    model: str = setting("", "checkpoint to start from; empty takes this run's pretraining")
    epochs: int = setting(2, "passes over the conversations")
    batch_tokens: int = setting(8192, "tokens in one optimiser step")
    micro_tokens: int = setting(4096, "tokens in one forward and backward")
    sequence: int = setting(1024, "longest conversation, tokens; longer ones are refused by name")
    save_every: int = setting(100, "steps between checkpoints")
    optim: OptimSettings = setting(OptimSettings(lr=1e-3, muon_lr=1e-2), "optimiser")


@dataclass(frozen=True)
class EngineSettings:
    """The sampler."""

    max_running: int = setting(32, "requests decoded together")
    max_waiting: int = setting(4096, "requests queued before new ones are refused")
    cache_tokens: int = setting(65_536, "tokens of key-value cache, all requests and cached prefixes together")
    block_tokens: int = setting(16, "tokens in one cache block")
    max_length: int = setting(2048, "longest prompt and answer together, tokens")
    prefill_tokens: int = setting(1024, "prompt tokens computed in one step beside the running requests")

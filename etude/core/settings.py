"""Every setting of a recipe, section by section: type, default, unit and one line each.

Plain dataclasses without third-party imports, so that model, learn and engine run where only torch is
installed. `recipe.py` reads TOML into them, refuses unknown keys and prints this documentation.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any, Literal


def setting(default: Any, doc: str, *, least: float | None = None, most: float | None = None) -> Any:
    """A field with its one line of documentation (`etude recipe show NAME --explain` prints it) and its bounds."""
    facts = {"doc": doc, "least": least, "most": most}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=facts)
    return dataclasses.field(default=default, metadata=facts)


@dataclass(frozen=True)
class ComputeSettings:
    """How the learner computes."""

    precision: Literal["auto", "float32", "bfloat16", "fp8", "mxfp8"] = setting(
        "auto",
        "numbers of activations and products, weights being float32; auto: bfloat16 on a GPU, float32 elsewhere; "
        "fp8 scales rows; mxfp8 scales blocks of 32 and is emulated, so exact and slow",
    )
    compile: bool = setting(True, "compile the model's blocks on a GPU; the first step then takes a minute longer")
    recompute: bool = setting(
        False, "keep only blocks' inputs and what attention gave for the backward pass: an eighth of the memory, slower"
    )


@dataclass(frozen=True)
class RunSettings:
    """The machine and the run as a whole."""

    seed: int = setting(0, "every random choice of the run follows from it", least=0)
    device: str = setting("cpu", "torch device of learner and engine: cpu, cuda, cuda:1")
    threads: int = setting(0, "torch threads of each process; 0 takes all cores", least=0)
    sandbox: str = setting("local", "local, docker (for a Dockerfile), or plain (no isolation; reports say so)")
    keep_checkpoints: int = setting(2, "newest checkpoints kept; older ones are removed after each save", least=1)
    save_in_background: bool = setting(
        False, "checkpoints are written while the next steps run, from a copy of model and moments in the host's memory"
    )
    gpu_hour: float = setting(0.0, "price of an hour of the device, in your money; 0: no cost is estimated", least=0)
    dashboard: bool = setting(True, "reinforcement learning fills the terminal with a dashboard; off: one line")
    sinks: list[dict[str, Any]] = setting(
        [], "where metrics go beside metrics.jsonl: wandb, trackio, tensorboard or ./mine.py:Mine, as { use = '...' }"
    )
    compute: ComputeSettings = setting(ComputeSettings(), "how the learner computes")


@dataclass(frozen=True)
class TokensSettings:
    """The byte-level BPE tokenizer that the run trains."""

    vocab_size: int = setting(2048, "entries, control tokens included", least=300)
    train_bytes: int = setting(4_000_000, "bytes of corpus the tokenizer is trained on", least=1)


@dataclass(frozen=True)
class ModelSettings:
    """The shape of a new decoder."""

    shape: Literal["qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "kimi_k2"] = setting(
        "qwen3", "the family: qwen2 and qwen3 are dense, qwen3_moe has experts, deepseek_v3 and kimi_k2 latent ones too"
    )
    depth: int = setting(
        0,
        "one dial: so many blocks, 32 times as wide, and the rest follows; 0 takes the fields below",
        least=0,
    )
    width: int = setting(128, "hidden size", least=1)
    layers: int = setting(4, "decoder blocks", least=1)
    heads: int = setting(4, "query heads", least=1)
    kv_heads: int = setting(2, "key and value heads (grouped-query attention)", least=1)
    head_dim: int = setting(32, "dimensions of one head", least=1)
    mlp: int = setting(384, "hidden size of the SwiGLU block", least=1)
    rope_theta: float = setting(10_000.0, "base of the rotary frequencies", least=1)
    max_positions: int = setting(4096, "longest sequence the shape promises", least=1)
    qk_norm: bool = setting(True, "RMSNorm on queries and keys (the qwen3 shape)")
    bias: bool = setting(False, "bias on the query, key, value and output projections")
    tied: bool = setting(True, "the output head shares the embedding")
    mtp_layers: int = setting(0, "multi-token-prediction modules", least=0)
    kv_rank: int = setting(64, "size of the latent that the cache holds (latent attention)", least=1)
    q_rank: int = setting(0, "size of the latent of queries; 0 projects them in one step (latent attention)", least=0)
    rope_dim: int = setting(16, "rotated dimensions of a head, beside head_dim others (latent attention)", least=2)
    experts: int = setting(8, "routed experts of a block (shapes with experts)", least=2)
    experts_per_token: int = setting(2, "experts that each token is routed to", least=1)
    expert_mlp: int = setting(128, "hidden size of one expert", least=1)
    shared_experts: int = setting(1, "experts that every token goes through (shapes with latent attention)", least=1)
    dense_layers: int = setting(1, "leading blocks without experts (shapes with latent attention)", least=0)
    expert_groups: int = setting(1, "groups that experts are chosen from (shapes with latent attention)", least=1)
    groups_per_token: int = setting(1, "groups that a token may choose experts from", least=1)
    routed_scale: float = setting(1.0, "factor on what routed experts add (shapes with latent attention)")

    def shaped(self) -> ModelSettings:
        """The fields as the dial sets them."""
        if not self.depth:
            return self
        return dataclasses.replace(
            self,
            depth=0,
            layers=self.depth,
            width=32 * self.depth,
            heads=self.depth,
            kv_heads=1 if self.depth % 2 else self.depth // 2,
            head_dim=32,
            mlp=96 * self.depth,
            kv_rank=16 * self.depth,
            expert_mlp=32 * self.depth,
        )


@dataclass(frozen=True)
class QualitySettings:
    """Levels of quality, for phases of training: by rules, by a classifier of labelled examples, or both."""

    labels: str = setting("", "JSONL of {text, label}, label 1 for what a corpus should hold and 0 else; empty: none")
    levels: list[float] = setting(
        [0.5], "scores from which on a document is of level 1, 2, ...; a phase of training takes a level and all above"
    )
    rules: list[dict[str, float]] = setting([], "thresholds of level 1, 2, ..., such as { least_comments = 0.1 }")


@dataclass(frozen=True)
class CorpusSettings:
    """Code -> filtered -> deduplicated -> decontaminated -> token shards."""

    sources: list[dict[str, Any]] = setting(
        [{"use": "stdlib"}],
        "components that yield documents: stdlib, packages, folder, archive, git or ./mine.py:Mine; each has `weight`",
    )
    licenses: list[str] = setting(["permissive", "unknown"], "licence classes kept: permissive, copyleft, unknown")
    max_bytes: int = setting(40_000_000, "stop reading after this many bytes of text; 0 is no limit", least=0)
    parse: bool = setting(True, "Python files must parse with the running Python")
    near_threshold: float = setting(
        0.7, "Jaccard similarity from which on a file is a near-duplicate; 1 turns it off", least=0.3, most=1
    )
    decontaminate: list[str] = setting([], "files or folders of texts that must not be in the corpus")
    decontaminate_ngram: int = setting(13, "words in a row that count as an overlap", least=5)
    held_out: float = setting(0.02, "share of repositories, and of files, kept for evaluation", least=0, most=0.5)
    fim_rate: float = setting(0.3, "share of documents turned into fill-in-the-middle", least=0, most=1)
    fim_chars: int = setting(
        1000, "longest fill-in-the-middle example, characters; should fit pretrain.sequence", least=16
    )
    order: Literal["paths", "imports"] = setting(
        "paths", "order of a repository's files, which long sequences keep: by path, or each after those it imports"
    )
    shard_tokens: int = setting(4_000_000, "tokens in one shard file", least=1024)
    quality: QualitySettings = setting(QualitySettings(), "levels of quality, by rules and by a classifier")


@dataclass(frozen=True)
class OptimSettings:
    """The optimiser of one stage."""

    matrices: Literal["muon", "adamw"] = setting(
        "muon", "optimiser of the matrices inside the blocks; everything else uses AdamW"
    )
    # The best of a sweep at 1M parameters, 100 steps: a loss of 3.76 with these two rates; matrices by AdamW reach
    # 4.87 at their best rate (docs/rooms/learn.md).
    lr: float = setting(1e-2, "peak learning rate of AdamW; matrices = 'adamw' wants about a third of it", least=0)
    muon_lr: float = setting(5e-3, "peak learning rate of Muon; an update has an RMS of 0.2 times it", least=0)
    schedule: Literal["cosine", "linear", "constant", "wsd"] = setting(
        "wsd", "shape of the decay; wsd is warm-up, stable, decay"
    )
    warmup: float = setting(0.02, "share of the steps spent warming up", least=0, most=1)
    decay: float = setting(0.3, "share of the steps spent in the final decay (wsd)", least=0, most=1)
    final_lr: float = setting(0.05, "learning rate at the end, as a share of the peak", least=0, most=1)
    betas: tuple[float, float] = setting((0.9, 0.95), "AdamW moments")
    eps: float = setting(1e-8, "AdamW denominator", least=0)
    momentum: float = setting(0.95, "Muon momentum (Nesterov)", least=0, most=1)
    weight_decay: float = setting(0.05, "decoupled weight decay of the matrices", least=0)
    clip: float = setting(1.0, "largest global gradient norm; 0 turns clipping off", least=0)
    ema: float = setting(0.0, "decay of the averaged weights kept for twins; 0 keeps none", least=0, most=1)
    balance: float = setting(1e-3, "how far a step moves the biases that even out the load of experts", least=0)


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters in place of whole weights. They are trained by AdamW at optim.lr; all else is frozen."""

    rank: int = setting(0, "rank of the adapters; 0 trains all weights", least=0)
    alpha: float = setting(16.0, "the adapters' product is scaled by alpha / rank", least=0)
    targets: list[str] = setting(
        ["all"], "projections inside the blocks, by name (q_proj, down_proj, kv_b_proj, ...); all is all but experts"
    )


@dataclass(frozen=True)
class PretrainSettings:
    """Pretraining on token shards: of a new decoder, or continued from a checkpoint that somebody brings."""

    model: str = setting("", "checkpoint to continue from, with its own tokenizer; empty trains a new decoder")
    weights: dict[str, float] = setting({}, "shares of the corpus's sources, by name; empty: as in corpus.sources")
    quality: int = setting(0, "least level of corpus.quality that is trained on; 0 takes everything", least=0)
    steps: int = setting(600, "optimiser steps", least=1)
    seconds: float = setting(
        0.0, "fewer steps where all would take longer than this; the rate decays in time. 0 is no limit", least=0
    )
    batch_tokens: int = setting(8192, "tokens in one optimiser step", least=2)
    micro_tokens: int = setting(4096, "tokens in one forward and backward", least=2)
    sequence: int = setting(512, "longest training sequence, tokens", least=2)
    eval_every: int = setting(100, "steps between evaluations on the held-out split; 0 turns them off", least=0)
    eval_tokens: int = setting(65_536, "tokens of one evaluation", least=2)
    private: str = setting(
        "", "folder of code that is never trained on, measured at each evaluation as held_out_loss_private; empty: none"
    )
    save_every: int = setting(100, "steps between checkpoints", least=1)
    mtp_weight: float = setting(0.1, "share of the MTP heads' distillation beside the main head's loss", least=0)
    optim: OptimSettings = setting(OptimSettings(), "optimiser; its rates are for a new decoder, continue with less")
    lora: LoraSettings = setting(LoraSettings(), "low-rank adapters")


@dataclass(frozen=True)
class MtpSettings:
    """Multi-token-prediction heads, made from scratch on a pretrained model whose own weights stay as they are."""

    model: str = setting("", "checkpoint that gets the heads; empty takes this run's pretraining")
    weights: dict[str, float] = setting({}, "shares of the corpus's sources, by name; empty: as in corpus.sources")
    quality: int = setting(0, "least level of corpus.quality that is trained on; 0 takes everything", least=0)
    heads: int = setting(1, "heads: how many tokens further ahead than the model itself they predict", least=1)
    steps: int = setting(0, "optimiser steps; 0 leaves this stage out", least=0)
    seconds: float = setting(
        0.0, "fewer steps where all would take longer than this; the rate decays in time. 0 is no limit", least=0
    )
    batch_tokens: int = setting(8192, "tokens in one optimiser step", least=2)
    micro_tokens: int = setting(4096, "tokens in one forward and backward", least=2)
    sequence: int = setting(512, "longest training sequence, tokens", least=2)
    eval_every: int = setting(100, "steps between measurements of the acceptance on held-out text; 0: none", least=0)
    eval_tokens: int = setting(65_536, "tokens of one measurement", least=2)
    save_every: int = setting(100, "steps between checkpoints", least=1)
    optim: OptimSettings = setting(OptimSettings(), "optimiser")


@dataclass(frozen=True)
class ExtendSettings:
    """Longer sequences: the last part of pretraining, on whole repositories. MTP heads are trained along."""

    model: str = setting("", "checkpoint to start from; empty takes what this run trained last")
    weights: dict[str, float] = setting({}, "shares of the corpus's sources, by name; empty: as in corpus.sources")
    quality: int = setting(0, "least level of corpus.quality that is trained on; 0 takes everything", least=0)
    steps: int = setting(0, "optimiser steps; 0 leaves this stage out", least=0)
    seconds: float = setting(
        0.0, "fewer steps where all would take longer than this; the rate decays in time. 0 is no limit", least=0
    )
    sequence: int = setting(4096, "longest training sequence, tokens", least=2, most=1 << 20)
    batch_tokens: int = setting(8192, "tokens in one optimiser step", least=2)
    micro_tokens: int = setting(8192, "tokens in one forward and backward", least=2)
    rope_theta: float = setting(0.0, "new base of the rotary frequencies; 0 keeps the model's", least=0)
    yarn: float = setting(0.0, "YaRN: positions are stretched by this factor; 0 keeps the model's", least=0)
    yarn_positions: int = setting(0, "positions that are stretched; 0 takes pretrain.sequence", least=0)
    eval_every: int = setting(0, "steps between evaluations; 0: before the first step and after the last", least=0)
    eval_tokens: int = setting(65_536, "tokens of held-out repositories in one evaluation", least=2)
    save_every: int = setting(100, "steps between checkpoints", least=1)
    mtp_weight: float = setting(0.1, "share of the MTP heads' distillation beside the main head's loss", least=0)
    optim: OptimSettings = setting(OptimSettings(lr=1e-3, muon_lr=5e-4), "optimiser")


@dataclass(frozen=True)
class SftSettings:
    """Supervised fine-tuning on conversations: loss on the assistant's tokens only."""

    data: str = setting("", "JSONL file of conversations, one a line; empty takes this run's demonstrations")
    model: str = setting("", "checkpoint to start from; empty takes this run's pretraining")
    epochs: int = setting(2, "passes over the conversations", least=1)
    seconds: float = setting(0.0, "fewer steps where all take longer; the rate decays in time. 0 is no limit", least=0)
    batch_tokens: int = setting(8192, "tokens in one optimiser step", least=2)
    micro_tokens: int = setting(4096, "tokens in one forward and backward", least=2)
    sequence: int = setting(1024, "longest conversation, tokens; longer ones are refused by name", least=2)
    save_every: int = setting(100, "steps between checkpoints", least=1)
    text: str = setting("", "folder of a corpus whose text is learnt beside, so that less is forgotten; empty: none")
    text_share: float = setting(0.3, "of the loss: what the text counts beside the conversations", least=0, most=0.95)
    mtp_weight: float = setting(0.1, "share of the MTP heads' distillation beside the main head's loss", least=0)
    optim: OptimSettings = setting(OptimSettings(lr=2e-3, muon_lr=1e-3), "optimiser")
    lora: LoraSettings = setting(LoraSettings(), "low-rank adapters")


@dataclass(frozen=True)
class EngineSettings:
    """The sampler."""

    max_running: int = setting(32, "requests decoded together", least=1)
    max_waiting: int = setting(4096, "requests queued before new ones are refused", least=1)
    cache_tokens: int = setting(65_536, "tokens of key-value cache, all requests and cached prefixes together", least=1)
    block_tokens: int = setting(16, "tokens in one cache block", least=1)
    max_length: int = setting(2048, "longest prompt and answer together, tokens", least=2)
    prefill_tokens: int = setting(1024, "prompt tokens computed in one step beside the running requests", least=1)
    prefill_every: int = setting(
        1, "steps that prompts wait at most for others to be computed with, while more requests decode", least=1
    )
    speculate: int = setting(
        0, "tokens that MTP heads draft for each request in a step; at most as many as the model has", least=0
    )
    request_seconds: int = setting(3600, "longest a request may take, its wait included; then it is ended", least=1)
    drain_seconds: int = setting(30, "how long a server told to stop lets running requests finish", least=0)
    body_bytes: int = setting(16 << 20, "largest body of a request to the server, bytes", least=1024)
    arrive_seconds: int = setting(
        90, "how long a request's head, then its body, may take to arrive; also how long a connection may idle", least=1
    )
    stall_seconds: int = setting(
        60, "how long a reader may take nothing of a stream, or for all of a whole answer", least=1
    )


@dataclass(frozen=True)
class EndpointSettings:
    """A hosted model, or any server that speaks the OpenAI-compatible interface, as a policy."""

    url: str = setting("", "base address, version included, such as https://host/v1; redirects are not followed")
    model: str = setting("", "name of the model there")
    key_env: str = setting("", "environment variable that holds the API key; empty sends none")
    ids: bool = setting(True, "where the context has token ids, send and ask for ids (/completions), as vLLM does")
    logprobs: Literal["raw", "sampled"] = setting(
        "raw",
        "what the server's log-probabilities are of: the plain model (vLLM's default) or the distribution sampled from",
    )
    form: Literal["text", "tools"] = setting(
        "text", "without ids, calls are spelled in the text, or native tool calls of /chat/completions"
    )
    thinking: Literal["drop", "reasoning", "reasoning_content"] = setting(
        "drop", "field in which earlier thinking is sent back with native tool calls"
    )
    call_id: str = setting("call_{number}", "ids of earlier native calls; Kimi knows them as functions.{name}:{number}")
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = setting(
        "max_tokens", "how the server calls the longest answer"
    )
    max_model_len: int = setting(
        0,
        "longest prompt and answer together, tokens; 0 takes what the server lists with its models, if it does",
        least=0,
    )
    extra: dict[str, Any] = setting({}, "more fields of every request, such as reasoning_effort")
    omit: list[str] = setting([], "fields never sent, for servers that refuse them, such as seed or temperature")
    tries: int = setting(6, "requests for one sample before it is given up", least=1)
    try_seconds: float = setting(240.0, "wait for the answer to one request", least=0)
    seconds: float = setting(
        290.0, "wait for one sample, all waits and tries together; below harness.limits.sample_seconds", least=0
    )
    concurrency: int = setting(16, "requests in flight", least=1)
    requests_per_minute: float = setting(0.0, "rate limit; 0 is none", least=0)
    tokens_per_minute: float = setting(0.0, "rate limit, prompt and longest answer counted; 0 is none", least=0)
    max_requests: int = setting(0, "budget of requests, repeated ones included; 0 is none", least=0)
    max_tokens: int = setting(0, "budget of tokens, prompts and answers; 0 is none", least=0)
    max_money: float = setting(0.0, "budget of money, at the two prices below; 0 is none", least=0)
    price_in: float = setting(0.0, "price of a million prompt tokens", least=0)
    price_out: float = setting(0.0, "price of a million sampled tokens", least=0)


@dataclass(frozen=True)
class AgentLimits:
    """What one rollout may use before it is stopped. Reaching one is the model's result, not a failure."""

    turns: int = setting(20, "turns of the model", least=1)
    sampled_tokens: int = setting(4096, "tokens sampled in all turns together", least=1)
    context_tokens: int = setting(8192, "tokens of one context, prompt and observations included", least=2)
    rollout_tokens: int = setting(
        0, "tokens of all contexts of a rollout together; more than context_tokens turns summaries on", least=0
    )
    seconds: float = setting(600.0, "time in tools, as on an idle machine; sampling does not count", least=0)
    sample_seconds: float = setting(300.0, "time for one sample; what takes longer is cut and ends the work", least=0)
    malformed: int = setting(3, "turns in a row that cannot be read before the rollout stops", least=1)


@dataclass(frozen=True)
class SummarySettings:
    """What happens when a context is full and limits.rollout_tokens leaves more."""

    use: Literal["trained", "prompted", "off"] = setting(
        "trained", "a short request whose answer is trained; a long one whose answer is not; or the rollout ends there"
    )
    at: int = setting(0, "tokens of a context at which a summary is asked for; 0: four fifths of its room", least=0)
    request: str = setting("", "words that ask for it; empty takes our own, short ones or long ones")
    max_tokens: int = setting(
        0, "longest summary, its thinking included; 0: an eighth of the context, a quarter when prompted", least=0
    )


@dataclass(frozen=True)
class HarnessSettings:
    """The agent: its tools, its first words and its limits."""

    tools: list[dict[str, Any]] = setting(
        [{"use": name} for name in ("read", "edit", "write", "list", "glob", "grep", "run", "todo", "finish")],
        "components the agent can call, each with its settings, or ./mine.py:Mine",
    )
    system: str = setting("Change the code in this folder as the user asks.", "first words of the system message")
    spec: Literal["none", "short", "full"] = setting(
        "short", "how the system message tells of the tools: not at all, a line each, or with their arguments"
    )
    recent_files: int = setting(0, "files that the instruction names, shown before it; at most so many", least=0)
    history: int = setting(0, "messages of a task's earlier conversation shown before it; at most so many", least=0)
    strict: bool = setting(
        True, "refuse calls that are nearly right; false takes the nearest tool and argument, and drops what is unknown"
    )
    environments: dict[str, dict[str, Any]] = setting(
        {},
        "by category or family of a task: which of these tools it has, and strict: { tools = ['read'], strict = true }",
    )
    template: dict[str, Any] = setting({}, "variables for a loaded model's chat template: { enable_thinking = false }")
    allowed_hosts: list[str] = setting([], "names that a task's own list may open to its agent; ['*'] opens all of it")
    limits: AgentLimits = setting(AgentLimits(), "what one rollout may use")
    summary: SummarySettings = setting(SummarySettings(), "going on in a new context from the model's own summary")
    effort: dict[str, float] = setting(
        {}, "levels of effort and how often a group is told each: { low = 1, medium = 1, high = 1 }; empty: none"
    )


@dataclass(frozen=True)
class GraderSettings:
    """Grading one rollout. A limit that the tested code reaches is a failed grade."""

    seconds: float = setting(60.0, "wall time of all tests; a task's own verifier.timeout_sec shortens it", least=1)
    cpu_seconds: int = setting(10, "processor time of any one process", least=1)
    memory_mb: int = setting(1024, "memory of all processes together, MB", least=64)
    disk_mb: int = setting(256, "files written, MB", least=1)
    processes: int = setting(64, "processes and threads at once", least=8)
    python: str = setting("", "interpreter in the sandbox; empty takes ours, which is warm and costs no start")


@dataclass(frozen=True)
class RewardSettings:
    """What a graded rollout is worth."""

    parts: list[dict[str, Any]] = setting(
        [{"use": "tests"}],
        "added up: tests, effort, diff, ending, behaviour, hack_penalty or ./mine.py:Mine, each with its `weight` (1)",
    )


@dataclass(frozen=True)
class AuditSettings:
    """The audit of rollouts for reward hacking. Tasks made from repositories are always audited."""

    penalty: float = setting(
        1.0, "weight of the part hack_penalty on such tasks, where reward.parts does not name it; 0 keeps the verdicts"
    )
    watch: bool = setting(
        True, "whether code that passes is run once more, with what it does to tests and framework recorded"
    )


@dataclass(frozen=True)
class DemosSettings:
    """Demonstrations: tasks solved by the reference policy in the real harness, for supervised fine-tuning."""

    tasks: dict[str, Any] = setting({"use": "katas", "split": "train"}, "task source")
    count: int = setting(1000, "tasks demonstrated, each once", least=1)
    habits: dict[str, float] = setting(
        {}, "how often the reference thinks, looks, checks, slips, ... as shares; empty takes its own habits"
    )
    concurrency: int = setting(8, "demonstrations at once", least=1)


@dataclass(frozen=True)
class BenchSettings:
    """A benchmark of one checkpoint on tasks that it has not seen."""

    tasks: dict[str, Any] = setting({"use": "katas", "split": "held_out"}, "task source")
    unseen: dict[str, Any] = setting({"use": "katas", "split": "unseen"}, "source of families never trained on")
    count: int = setting(100, "tasks; 0 is all of a folder", least=0)
    unseen_count: int = setting(0, "tasks of the unseen source, reported apart", least=0)
    samples: int = setting(4, "rollouts of each task", least=1)
    temperature: float = setting(1.0, "of the sampler", least=0)
    concurrency: int = setting(64, "rollouts in flight", least=1)
    seed: int = setting(1, "of the samples", least=0)
    sft_more: bool = setting(False, "a third arm: fine-tuning that goes on for as long as reinforcement learning took")


@dataclass(frozen=True)
class BaseSettings:
    """Evaluations of a model without an agent: `etude bench base`."""

    code: str = setting("", "folder of code to be measured on; empty takes a fixed sample of Python's standard library")
    code_bytes: int = setting(400_000, "bytes of code at most, whole files chosen by the hash of their path", least=1)
    window: int = setting(2048, "tokens seen at once; limited by the model's positions", least=4)
    repository: str = setting("", "git checkout whose history is tracked; empty makes small histories up")
    histories: int = setting(24, "files whose final state is asked for", least=1)
    history_tokens: int = setting(2048, "longest history and answer together", least=64)
    needle_lengths: list[int] = setting([256, 512, 1024, 2048], "tokens of the texts that a fact is hidden in")
    needle_depths: list[float] = setting([0.0, 0.25, 0.5, 0.75, 1.0], "where it stands: 0 the start, 1 the end")
    needle_trials: int = setting(4, "facts hidden at each length and depth", least=1)
    needle_candidates: int = setting(8, "answers of which one is true, for the probability and the rank", least=2)
    batch_tokens: int = setting(4096, "tokens in one forward", least=1)
    seed: int = setting(0, "of histories and needles", least=0)
    questions: str = setting("", "JSONL of questions on fresh knowledge (`etude bench fresh` makes them); empty: none")
    since: str = setting("", "only questions from this day on, such as 2026-10-01; empty takes all")
    serving_lengths: list[int] = setting([8192, 131_072], "tokens of a context whose cost of serving is stated")
    serving_most: int = setting(
        8192, "longest context whose speed is measured, tokens; memory is always stated", least=0
    )
    serving_requests: int = setting(4, "requests served at once when speed is measured", least=1)
    serving_tokens: int = setting(32, "tokens that each of them writes", least=1)

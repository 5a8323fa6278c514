"""What one optimiser step has to do: the model, how many tokens, how long, in which numbers, with which optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from etude.core.errors import EtudeError
from etude.model import size
from etude.model.config import ModelConfig
from etude.model.size import Projection, projections

if TYPE_CHECKING:  # recipes need pydantic, which a machine that only measures may lack
    from etude.core.recipe import Recipe

STAGES = ("pretrain", "extend", "mtp", "sft", "rl")
WEIGHT = 4  # bytes: weights, gradients and moments are float32 whatever products compute in

Precision = Literal["float32", "bfloat16", "fp8"]


@dataclass(frozen=True)
class Workload:
    config: ModelConfig
    stage: str
    batch_tokens: int  # of a step
    micro_tokens: int  # in one forward and backward of a rank, or of the ranks that compute sequences together
    sequence: int  # tokens
    precision: Precision
    recompute: bool
    matrices: Literal["muon", "adamw"]
    lora: int = 0  # rank of adapters; 0 trains everything
    average: bool = False  # an average of the weights is kept
    frozen: bool = False  # the weights of the start are kept
    background: bool = False  # checkpoints are written beside training, from a copy
    gpu: bool = True

    def __post_init__(self) -> None:
        if self.sequence > self.config.max_position_embeddings:
            raise EtudeError(
                f"sequences of {self.sequence} tokens are longer than the model's "
                f"{self.config.max_position_embeddings} positions"
            )

    @property
    def number(self) -> int:
        """Bytes of an activation."""
        return WEIGHT if self.precision == "float32" else 2

    @property
    def parameters(self) -> int:
        return counts(self.config).parameters

    @property
    def expert_parameters(self) -> int:
        return counts(self.config).experts

    @property
    def trained(self) -> int:
        return size.adapter_parameters(self.config, self.lora) if self.lora else self.parameters

    @property
    def flops(self) -> float:
        """Of a token, forward and backward, as utilisation counts them: 6 for each weight it uses, and attention."""
        return 6 * counts(self.config).active + 3 * attention_flops(self.config, self.sequence)


@dataclass(frozen=True)
class Counts:
    """Weights of a model: all, those of routed experts, those of them that a token visits, and what a token uses."""

    parameters: int
    experts: int
    visited: int
    active: int


@cache
def counts(config: ModelConfig) -> Counts:
    routed = [p for n in range(config.cache_layers) for p in projections(config, n) if p.copies > 1]
    return Counts(
        parameters=size.parameters(config),
        experts=sum(p.weights * p.copies for p in routed),
        visited=sum(p.weights * p.used for p in routed),
        active=size.active_parameters(config),
    )


def experts(config: ModelConfig, layer: int) -> int:
    """Weights of the routed experts of a block."""
    return sum(p.weights * p.copies for p in projections(config, layer) if p.copies > 1)


def block(config: ModelConfig, layer: int) -> int:
    """Weights of a block's matrices without routed experts."""
    return sum(p.weights for p in projections(config, layer) if p.copies == 1)


def attention_flops(config: ModelConfig, sequence: int) -> float:
    """Of a token in the forward pass, in all blocks: on average it sees half of its sequence."""
    heads = config.num_attention_heads * (config.query_dim + config.value_dim)
    return config.cache_layers * sequence * heads


def named_projections(config: ModelConfig, layer: int) -> list[tuple[str, Projection]]:
    """The matrices of a block with the names of those that are made of heads; others have none."""
    if config.latent:
        queries = ["q_a_proj", "q_b_proj"] if config.q_lora_rank else ["q_proj"]
        names = [*queries, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    else:
        names = ["q_proj", "k_proj", "v_proj", "o_proj"]
    found = list(projections(config, layer))
    return list(zip([*names, *[""] * (len(found) - len(names))], found, strict=True))


def of_recipe(recipe: Recipe, stage: str, config: ModelConfig, gpu: bool) -> Workload:
    if stage not in STAGES:
        raise EtudeError(f"{stage!r} trains nothing; stages that train are {', '.join(STAGES)}")
    settings, rl = getattr(recipe, stage), recipe.rl
    precision = recipe.run.compute.precision
    if precision == "auto":
        precision = "bfloat16" if gpu else "float32"
    # In MXFP8, which is emulated, memory is that of bfloat16; how long emulation takes is not planned.
    precision = "bfloat16" if precision == "mxfp8" else precision
    sequence, batch = getattr(settings, "sequence", 0), getattr(settings, "batch_tokens", 0)
    if stage == "rl":
        # At most: most rollouts end before their context is full.
        sequence = min(recipe.harness.limits.context_tokens, config.max_position_embeddings)
        batch = rl.groups * rl.group * sequence
    return Workload(
        config=config,
        stage=stage,
        batch_tokens=batch,
        micro_tokens=min(batch, max(settings.micro_tokens, sequence)),
        sequence=sequence,
        precision=precision,
        recompute=recipe.run.compute.recompute,
        matrices=settings.optim.matrices,
        lora=settings.lora.rank if hasattr(settings, "lora") else 0,
        average=bool(settings.optim.ema),
        frozen=stage == "rl" and bool(rl.kl or rl.feedback.behaviours),
        background=recipe.run.save_in_background,
        gpu=gpu,
    )

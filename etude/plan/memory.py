"""Memory that one rank takes in a step, part by part, in bytes.

What stays (weights, gradients, moments), and the larger of two moments: the start of the backward pass, when all that
was kept is there and a chunk of logits or the gradients of one block; and the optimiser's own work. Without what the
library itself takes (`Machine.spare`). On a CPU freed memory stays with the process, in pieces (`heap`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import cache

from etude.learn.parallel.layout import Layout
from etude.model.config import ModelConfig
from etude.plan.activations import kept_by_blocks, probabilities
from etude.plan.workload import WEIGHT, Workload, block, experts, named_projections

# As in model/packed_forward.py, which needs torch; a test holds them equal.
CHUNK_LOGITS = {False: 1 << 20, True: 1 << 29}  # by whether it is a GPU
CHUNK_ROWS = 256
HOLES = 0.15
BUCKET_NUMBERS = 16 << 20  # of an owner, as in learn/parallel/muon.py
GATHERED = 2  # blocks whose whole weights are there at once: the one computed, and the next


@dataclass(frozen=True)
class Memory:
    weights: int
    gradients: int
    moments: int
    averages: int  # averaged or frozen weights, for twins
    gathered: int  # weights of blocks in the numbers they are used in, put together from all ranks
    activations: int  # kept for the backward pass
    logits: int  # a chunk of them
    backward: int  # what is computed again, and gradients inside one block
    collectives: int  # buffers of what is sent and received
    optimiser: int  # while weights are moved; the five above are free then
    heap: int = 0  # of a CPU: freed, and in too small pieces for what comes next
    copy: int = 0  # of a checkpoint that is written beside training
    host: int = 0  # the same beside a GPU: in the host's memory, so no part of the peak

    @property
    def stays(self) -> int:
        return self.weights + self.gradients + self.moments + self.averages

    @property
    def peak(self) -> int:
        computing = self.gathered + self.activations + max(self.logits, self.backward) + self.collectives
        return self.stays + max(computing, self.optimiser) + self.heap + self.copy

    def at_peak(self) -> dict[str, int]:
        """The parts that are there at the moment of the peak."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        computing = self.peak - self.stays - self.heap - self.copy > self.optimiser
        gone = ("optimiser",) if computing else ("gathered", "activations", "logits", "backward", "collectives")
        gone = (*gone, "host")
        return {name: part for name, part in parts.items() if name not in gone}

    def parts(self) -> dict[str, int]:
        return {part.name: getattr(self, part.name) for part in fields(self)} | {"peak": self.peak}


def memory(work: Workload, layout: Layout) -> Memory:
    config = work.config
    trained, tokens = work.trained, -(-work.micro_tokens // layout.context)
    matrices = 0 if work.lora or work.matrices == "adamw" else sum(slices(config).values())
    routed = 0 if work.lora else work.expert_parameters
    # Of a matrix that Muon moves there is one moment, of everything else there are two.
    moments = 2 * trained - matrices, (1 if matrices else 2) * routed
    held = work.parameters + (trained if work.lora else 0)
    activations, again = _activations(work, layout, tokens)
    found = Memory(
        weights=_held(config, held, work.expert_parameters, layout),
        gradients=_held(config, trained, routed, layout),
        moments=_held(config, *moments, layout),
        averages=(work.average + work.frozen) * _held(config, trained, routed, layout),
        gathered=_gathered(work, layout),
        activations=activations,
        logits=_logits(work, tokens),
        backward=again,
        collectives=_buffers(work, layout, tokens),
        optimiser=_optimiser(work, layout),
    )
    # Ranks that share a model give large blocks back (core/process.py), so they have no holes to speak of.
    heap = 0 if work.gpu or layout.ranks > 1 else _heap(work, found, tokens)
    # Weights are put together and divided anew, each rank having as many to write; frozen ones are in no checkpoint.
    average = found.averages // (work.average + work.frozen) if work.average else 0
    copy = WEIGHT * held // layout.sharing + found.moments + average if work.background else 0
    return replace(found, heap=heap, copy=0 if work.gpu else copy, host=copy if work.gpu else 0)


def _held(config: ModelConfig, numbers: int, of_experts: int, layout: Layout) -> int:
    """Bytes of a rank's part. Experts are divided whole, so with more ranks than experts some ranks have none."""
    here = -(-config.num_experts // layout.sharing)
    experts = of_experts // config.num_experts * here if of_experts else 0
    return WEIGHT * ((numbers - of_experts) // layout.sharing + experts)


def _chunk(work: Workload, tokens: int) -> int:
    """Bytes of a chunk of logits."""
    vocabulary = work.config.vocab_size
    return WEIGHT * vocabulary * min(max(CHUNK_ROWS, CHUNK_LOGITS[work.gpu] // vocabulary), tokens)


def _logits(work: Workload, tokens: int) -> int:
    """A chunk of them and what is made of it: 0.6B and 4B on one H200 took about two chunks of float32.

    A CPU computes operation by operation: three chunks; and it makes the head's gradient beside the one that it is
    added to, which on a GPU the two chunks cover.
    """
    if work.gpu:
        return 2 * _chunk(work, tokens)
    return 3 * _chunk(work, tokens) + (0 if work.lora else WEIGHT * work.config.vocab_size * work.config.hidden_size)


def _heap(work: Workload, found: Memory, tokens: int) -> int:
    """What the process keeps of freed blocks on a CPU: large ones of one phase are no use to the other.

    The share of holes is fitted to benchmarks/scale/plan_memory.py.
    """
    idle = min(found.peak - found.stays, found.optimiser)
    # Attention over a long sequence goes block by block over ever more keys, so no hole fits the next block's scores.
    length = min(work.sequence, tokens)
    scores = 0 if probabilities(work.config, tokens, length) else work.config.num_attention_heads * length**2
    # Small blocks come to lie in the place of a chunk of logits that was freed, so the next one finds another place.
    moved = 2 * 3 * _chunk(work, tokens)
    return int(idle + moved + WEIGHT * scores + HOLES * (found.peak + idle))


@cache
def slices(config: ModelConfig) -> Counter[tuple[int, int]]:
    """Numbers in the matrices that Muon moves, by the shape of what it treats as one matrix: a head, an expert."""
    heads, found = config.head_dims, Counter[tuple[int, int]]()
    for layer in range(config.cache_layers):
        for name, p in named_projections(config, layer):
            if p.copies == 1 and not p.adapted:
                continue  # the router, which AdamW moves
            rows, columns = p.outputs, p.inputs
            if name == "o_proj":
                columns = heads[name]
            elif name in heads:
                rows = heads[name]
            found[min(rows, columns), max(rows, columns)] += p.outputs * p.inputs * p.copies
    for _ in range(config.num_nextn_predict_layers):
        found[config.hidden_size, 2 * config.hidden_size] += 2 * config.hidden_size**2
    return found


def _activations(work: Workload, layout: Layout, tokens: int) -> tuple[int, int]:
    """Bytes kept by all blocks, and those that one block needs beside them while it goes backward."""
    config = work.config
    parts = kept_by_blocks(config, work.gpu)
    # Ranks that compute a sequence together have the keys and values of all of it.
    heads = config.num_attention_heads if config.latent else config.num_key_value_heads
    others = (layout.context - 1) * heads * (config.query_dim + config.value_dim)
    # The trunk's last state, normed, and the gradient that the head gives.
    ends = (3 + 4 * config.num_nextn_predict_layers) * config.hidden_size
    largest = max(max(part.before + part.attention + others, part.after) for part in parts)
    # Attention on a CPU holds what its backward pass needs itself, where recomputation cannot let go of it. Only with
    # several context ranks is attention computed a second time, too.
    held = not work.gpu and layout.context == 1
    if work.recompute:
        kept = config.num_attention_heads * (config.value_dim + 2)
        numbers = sum(config.hidden_size + (part.attention if held else kept) for part in parts)
        again = 2 * largest
    else:
        numbers, again = sum(part.whole + others for part in parts), largest
    extra = probabilities(config, tokens, work.sequence) if held else 0
    stays = tokens * (numbers + ends) + len(parts) * extra
    return work.number * stays, work.number * (tokens * again + extra)


def _gathered(work: Workload, layout: Layout) -> int:
    config = work.config
    if layout.sharing == 1:
        # One copy of each weight in the numbers that products take, kept until the backward pass.
        return work.number * work.parameters if work.number < WEIGHT else 0
    tables = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    whole = _largest_block(config, layout.expert)
    # Float32 masters are gathered as they are (learn/parallel/hsdp.py), and rounded where they are used.
    return WEIGHT * (GATHERED * whole + tables) + (work.number * whole if work.number < WEIGHT else 0)


@cache
def _largest_block(config: ModelConfig, expert: int) -> int:
    """Weights of a block that a rank sees whole: of the experts only its own."""
    return max(block(config, n) + experts(config, n) // expert for n in range(config.cache_layers))


def _buffers(work: Workload, layout: Layout, tokens: int) -> int:
    config, found = work.config, 0
    if layout.sharing > 1 and not work.lora:
        whole = _largest_block(config, layout.expert)
        found += WEIGHT * whole  # gradients of a block, before each rank has its part
        if not work.gpu:
            # FSDP puts those into one buffer, which gloo copies before it adds to it; and gathered weights are copied
            # out of another. The head's gradient stays whole until the backward pass ends.
            found += WEIGHT * (3 * whole + config.vocab_size * config.hidden_size)
    if layout.expert > 1:
        # Sent and received: a token's state for each expert that it visits.
        found += 2 * work.number * tokens * config.num_experts_per_tok * config.hidden_size
    if layout.context > 1:
        planes, heads, dims = config.cache_shape
        found += 2 * work.number * tokens * layout.context * planes * heads * dims
    return found


def _optimiser(work: Workload, layout: Layout) -> int:
    """Muon has the updates of all slices of one shape at once: before and after a product, and two Gram matrices.

    Several ranks have those of a bucket at once.
    """
    if work.lora or work.matrices == "adamw":
        return 0
    number = 2 if work.gpu else WEIGHT
    shapes = slices(work.config).items()
    if layout.sharing > 1:
        # Bucket by bucket (learn/parallel/muon.py): one that comes and one that goes, each sent and received; of the
        # one between them what was received, its matrices, and what one rank would need for those.
        owned = {shape: min(BUCKET_NUMBERS, count // layout.sharing) for shape, count in shapes}
        return int(max(number * (8 + 2 * short / long) * count for (short, long), count in owned.items()))
    return int(max(number * (2 + 2 * short / long) * count for (short, long), count in shapes) / layout.sharing)


def smallest_sharing(work: Workload, usable: int) -> int:
    """Ranks that at least have to share a copy for what stays to fit `usable` bytes each."""
    return -(-memory(work, Layout()).stays // usable)

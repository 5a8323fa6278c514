"""A decoder made ready to be trained: its precision, how its blocks are cut up, and what memory that will take.

Done once, before a learner takes the decoder; a step knows nothing of it.
"""

from __future__ import annotations

import sys

import torch

from etude.core.errors import EtudeError
from etude.core.settings import ComputeSettings
from etude.model import size
from etude.model.compile_regions import Stages
from etude.model.decoder import Block, Decoder
from etude.model.lora_linear import adapted
from etude.model.low_precision.products import choose, set_precision
from etude.model.packed_forward import CHUNK_LOGITS

GIB = 2**30


def ready(decoder: Decoder, compute: ComputeSettings, device: str, micro_tokens: int) -> Decoder:
    """Sets `decoder` up to be trained on `device`, and says there what memory it will take."""
    set_up(decoder, compute, device)
    if torch.device(device).type == "cuda":
        need, total = peak_bytes(decoder, compute, device, micro_tokens), torch.cuda.mem_get_info(device)[1]
        line = f"training takes about {need / GIB:.1f} of {total / GIB:.0f} GiB of GPU memory"
        print(f"{line}, {micro_tokens} tokens at once", file=sys.stderr, flush=True)
        if need > 1.3 * total:  # an estimate: what is only a little too much may still fit
            raise EtudeError(f"{line}; lower micro_tokens, or set run.compute.recompute")
    return decoder


def set_up(decoder: Decoder, compute: ComputeSettings, device: str) -> Decoder:
    precision, cuda = choose(compute.precision, device), torch.device(device).type == "cuda"
    set_precision(decoder, precision)
    compiled = compute.compile and cuda and precision.dtype is not None
    for block in decoder.modules():
        if isinstance(block, Block):
            block.stages = Stages(compiled, compute.recompute) if compiled or compute.recompute else None
    return decoder


def peak_bytes(decoder: Decoder, compute: ComputeSettings, device: str, micro_tokens: int) -> int:
    modules = adapted(decoder)
    rank = next(iter(modules.values())).rank if modules else 0
    activation = 4 if choose(compute.precision, device).dtype is None else 2
    chunk, recompute = CHUNK_LOGITS["cuda"], compute.recompute
    return size.training_bytes(
        decoder.config, micro_tokens, rank=rank, activation=activation, recompute=recompute, chunk=chunk
    )

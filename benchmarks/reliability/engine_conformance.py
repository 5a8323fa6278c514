"""One suite for every engine of the training loop, with figures: ours and vLLM, dense and with experts.

    python benchmarks/reliability/engine_conformance.py --engine etude|vllm --shape dense|moe [--json]
        [--vllm-python PATH]   an interpreter whose environment has vLLM and etude[weights]
        [--address unix:PATH --chain DIR --model DIR]   a vLLM server that runs already

A small checkpoint is made by transformers (Qwen3 or Qwen3-MoE, float32). The engine is started with it and follows a
delta chain; transformers gives the reference log-probabilities of every version. Afterwards 32 requests of 128 tokens
in and 128 out are timed, and one alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etude.cluster.local import LocalPlacement
from etude.cluster.vllm import vllm_program
from etude.core.policy import Context, Sampling, Version
from etude.core.settings import EngineSettings
from etude.model.checkpoint.directory import load_model, named_weights
from etude.model.weight_transfer.publish import ChainPublisher
from etude.policies.engine_client import EngineClient, launch
from etude.policies.engine_conformance import check_engine
from etude.policies.vllm_client import VLLMClient

FIRST = Version(0, 0)
MOVED = ("model.layers.0.self_attn.v_proj.weight", "model.layers.1.self_attn.o_proj.weight")
MOVED_EXPERT = tuple(
    f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
    for layer, expert in ((0, 1), (1, 0), (1, 5))
    for part in ("gate", "up", "down")
)
START_SECONDS = 400.0  # vLLM's; 65 to 190 s were seen


def make_checkpoint(path: Path, shape: str) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "initializer_range": 0.08,  # so that answers are not all alike
    }
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
    model = (
        Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts))
        if shape == "moe"
        else Qwen3ForCausalLM(Qwen3Config(**sizes))
    )
    model.float().save_pretrained(path)


def _named_by_transformers(held: dict[str, Tensor], name: str) -> Tensor:
    """A tensor of ours in the state of a transformers model, which holds the experts of a block as one."""
    if ".experts." not in name:
        return held[name]
    block, _, rest = name.partition(".experts.")
    expert, part, _ = rest.split(".")
    if part == "down_proj":
        return held[f"{block}.experts.down_proj"][int(expert)]
    return held[f"{block}.experts.gate_up_proj"][int(expert)].chunk(2)[0 if part == "gate_proj" else 1]


class TransformersLab:
    """Publishes to a chain; transformers scores each version."""

    vocabulary = 512
    longest = 400

    def __init__(self, model: Path, chain: str) -> None:
        from transformers import AutoModelForCausalLM

        self.decoder = load_model(model)
        self.reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        config = self.decoder.config
        self.routes = (len(config.sparse_layers), config.num_experts_per_tok) if config.sparse_layers else None
        self.publisher = ChainPublisher(chain, "conformance")
        self.version = FIRST
        self.held = {FIRST: {name: x.clone() for name, x in self.reference.state_dict().items()}}
        self.publisher.publish(self.decoder, FIRST)
        self.publisher.wait()

    def publish(self, moved: bool) -> Version:
        self.version = Version(self.version.lineage, self.version.step + 1)
        held = {name: x.clone() for name, x in self.held[Version(0, self.version.step - 1)].items()}
        if moved:
            draw = torch.Generator().manual_seed(self.version.step)
            weights = named_weights(self.decoder)
            # A few tensors: only they are in the delta.
            for name in MOVED + (MOVED_EXPERT if self.routes else ()):
                change = 0.05 * torch.randn(weights[name].shape, generator=draw)
                _named_by_transformers(held, name).add_(change)
                with torch.no_grad():
                    weights[name].add_(change)
        self.held[self.version] = held
        self.publisher.publish(self.decoder, self.version)
        return self.version

    def logprobs(self, version: Version, ids: Sequence[int]) -> Sequence[float]:
        self.reference.load_state_dict(self.held[version])
        with torch.no_grad():
            logits = self.reference(torch.tensor([ids])).logits[0].double()
        scores = torch.log_softmax(logits[:-1], -1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
        return [0.0, *scores.tolist()]


async def speed(engine: EngineClient, requests: int) -> float:
    """Sampled tokens a second: 128 in, 128 out."""
    draw = torch.Generator().manual_seed(1)
    prompts = [tuple(torch.randint(3, 512, (128,), generator=draw).tolist()) for _ in range(requests)]
    begin = time.perf_counter()
    samples = await asyncio.gather(*(engine.sample(Context(ids=each), Sampling(128)) for each in prompts))
    return sum(len(sample.ids or ()) for sample in samples) / (time.perf_counter() - begin)


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    model, chain = options.model or folder / "model", options.chain or str(folder / "weights")
    if options.model is None:
        make_checkpoint(model, options.shape)
    lab = TransformersLab(model, chain)
    settings = EngineSettings(max_length=512)
    begin, engine = time.perf_counter(), None
    if options.address:
        engine = VLLMClient(options.address)
        await engine.attach(chain, FIRST)
    elif options.engine == "vllm":
        program = vllm_program("engine-0", None, model, settings, options.vllm_python)
        server = await LocalPlacement().start(program, START_SECONDS)
        engine = VLLMClient(server.said, server=server)
        await engine.attach(chain, FIRST)
    else:
        engine = await launch(model, settings, chain=chain, version=FIRST)
    try:
        started = time.perf_counter() - begin
        findings = await check_engine(engine, lab)
        await speed(engine, 4)
        speeds = {"tokens_per_second_32": await speed(engine, 32), "tokens_per_second_1": await speed(engine, 1)}
    finally:
        await engine.close()
        lab.publisher.close()
    return {
        "engine": options.engine,
        "shape": options.shape,
        "start_seconds": started,
        "passed": all(found.passed for found in findings),
        "checks": {found.name: asdict(found) for found in findings},
    } | speeds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("etude", "vllm"), default="etude")
    parser.add_argument("--shape", choices=("dense", "moe"), default="dense")
    parser.add_argument("--vllm-python", default=sys.executable)
    parser.add_argument("--address")
    parser.add_argument("--chain")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(options, Path(folder)))
    for check in found["checks"].values():
        figures = "  ".join(f"{name} {value:.3g}" for name, value in check["figures"].items())
        print(f"{check['name']:>14}  {'passed' if check['passed'] else 'FAILED'}  {figures}  {check['said']}")
    print(f"tokens/s: {found['tokens_per_second_32']:.0f} (32 requests), {found['tokens_per_second_1']:.0f} (one)")
    if options.json:
        print(json.dumps(found))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())

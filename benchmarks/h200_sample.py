"""Sampling on one GPU: the engine against `transformers` `generate` in the same run, and against the memory's speed.

    python benchmarks/h200_sample.py                      # all lines
    python benchmarks/h200_sample.py --only 0.6B-1 --profile

    34M             a 34M-parameter Qwen3 shape, 256 requests of 256 tokens, answers of 128
    0.6B-256        Qwen3-0.6B's shape, 256 requests of 512 tokens, answers of mixed length up to 512
    0.6B-1          the same, one request
    moe-256, moe-1  a DeepSeek-V3 shape (latent attention, 64 experts of which 6, one shared) with 1B parameters
    numerics        bfloat16: k3 of 10,000 sampled tokens between the engine and a forward over whole sequences
    numerics-model  the same of a saved model (--model, --text)
    publish         new weights on the same GPU under running requests: how long the engine stands still

Weights and prompts are random. Roofline is the time that the memory needs at 4.8 TB/s for the bytes that the steps must
read, over the time it took: all weights once a step (of experts, as many as the step's tokens can have chosen), and
keys and values of all tokens that each request saw then. `full` is while all requests decode, `whole` is the whole run,
prompts included. One JSON line each; a line that fails says so and the others go on.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etude.core.policy import Sampling, Version, routes_of
from etude.core.settings import EngineSettings
from etude.engine.cuda.runner import PagedRunner
from etude.engine.engine import Engine
from etude.engine.request import Request
from etude.engine.runner import Read
from etude.engine.scheduler import Chunk
from etude.model.checkpoint.directory import load_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.packed_forward import Packed
from etude.model.weight_transfer.shared_memory import WeightBoard, create_board

MEMORY = 4.8e12  # bytes a second
V0 = Version(0, 0)
SHAPES = {
    "34M": ModelConfig(16_384, 512, 1536, 8, 8, 4, 64, max_position_embeddings=4096),
    "0.6B": ModelConfig(
        151_936, 1024, 3072, 28, 16, 8, 128, rope_theta=1e6, max_position_embeddings=40_960, model_type="qwen3"
    ),
    "moe": ModelConfig(
        32_768,
        1024,
        2816,
        12,
        16,
        16,
        64,
        max_position_embeddings=8192,
        model_type="deepseek_v3",
        qk_norm=False,
        tie_word_embeddings=False,
        kv_lora_rank=512,
        q_lora_rank=768,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        num_experts=64,
        num_experts_per_tok=6,
        moe_intermediate_size=384,
        n_shared_experts=1,
        scoring="sigmoid",
        routed_scaling_factor=2.0,
        first_k_dense_replace=1,
        rope_interleave=True,
    ),
}


def random_decoder(config: ModelConfig, seed: int = 0, gain: float = 0.0) -> Decoder:
    """bfloat16 on the GPU. With `gain`, weights that keep the size of what they act on; logits have that deviation."""
    with torch.device("cuda"):
        decoder = Decoder(config, seed)
    for parameter in decoder.parameters():
        parameter.data = parameter.data.bfloat16().requires_grad_(False)
        if gain and parameter.ndim > 1:
            size = (gain if len(parameter) == config.vocab_size else 1.0) * parameter.shape[-1] ** -0.5
            parameter.data *= size / parameter.data.float().std()
    return decoder.eval().requires_grad_(False)


@dataclass
class Reading:
    """A runner that also adds up the bytes that its steps must read."""

    runner: PagedRunner
    weights: int  # bytes of all weights but those of experts and of an embedding that is no head
    expert: int  # bytes of one expert, in all layers with experts
    experts: int  # there are, of which each token chooses
    choices: int
    token: int  # bytes of one token in the cache
    bytes: float = 0.0
    depth: int = field(default=1, init=False)

    @property
    def cache(self) -> Any:
        return self.runner.cache

    def overlaps(self, chunks: Sequence[Chunk]) -> bool:
        return True

    def launch(self, chunks: Sequence[Chunk], ready: Sequence[Request]) -> Read:
        tokens = sum(chunk.count for chunk in chunks)
        seen = sum(chunk.request.computed + chunk.count for chunk in chunks)
        self.bytes += self.weights + self.expert * min(self.experts, tokens * self.choices) + seen * self.token
        return self.runner.launch(chunks, ready)


def reading(decoder: Decoder, settings: EngineSettings) -> Reading:
    config = decoder.config
    expert = sum(p.nbytes for name, p in decoder.named_parameters() if ".experts." in name) // max(
        1, config.num_experts
    )
    others = sum(p.nbytes for name, p in decoder.named_parameters() if ".experts." not in name)
    others -= 0 if config.tie_word_embeddings else decoder.model.embed_tokens.weight.nbytes
    planes, heads, dims = config.cache_shape
    token = planes * heads * dims * config.num_hidden_layers * 2
    runner = PagedRunner(decoder, settings)
    runner.graphs.record_all()
    return Reading(runner, others, expert, config.num_experts, config.num_experts_per_tok, token)


@torch.inference_mode()
def engine_speed(decoder: Decoder, prompts: list[list[int]], answers: list[int], profile: bool) -> dict[str, Any]:
    length = max(map(len, prompts)) + max(answers)
    settings = EngineSettings(
        max_running=len(prompts),
        max_length=length + 16,
        cache_tokens=(length + 48) * len(prompts),
        prefill_tokens=8192,
    )
    begin = time.perf_counter()
    runner = reading(decoder, settings)
    engine = Engine(decoder, settings, V0, runner)
    recorded = time.perf_counter() - begin
    for _ in engine_run(engine, [ids[::-1] for ids in prompts], [4] * len(prompts)):
        pass
    runner.bytes = 0.0
    torch.cuda.synchronize()
    begin = time.perf_counter()
    marks: list[tuple[float, float, int]] = []
    requests: list[Request] = []
    first = -1
    for step, requests in enumerate(engine_run(engine, prompts, answers)):
        decoding = all(request.logprobs for request in requests)
        if decoding and all(not request.finished for request in requests) and step % 8 == 0:
            torch.cuda.synchronize()
            first = step if first < 0 else first
            marks.append((time.perf_counter(), runner.bytes, step))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    tokens = sum(answers)
    assert [len(request.sampled) for request in requests] == answers
    out: dict[str, Any] = {
        "tokens_s": round(tokens / seconds),
        "whole_roofline": round(runner.bytes / MEMORY / seconds, 3),
        "seconds": round(seconds, 3),
        "recording_s": round(recorded, 1),
    }
    if len(marks) > 2:
        spent, read, steps = (marks[-1][i] - marks[1][i] for i in range(3))
        out["full_tokens_s"] = round(steps * len(prompts) / spent)
        out["full_roofline"] = round(read / MEMORY / spent, 3)
        out["full_step_ms"] = round(1e3 * spent / steps, 3)
    if profile:
        out["profile"] = profiled(engine, prompts)
    return out


def engine_run(engine: Engine, prompts: list[list[int]], answers: list[int]) -> Any:
    requests = [
        engine.submit(ids, Sampling(max_tokens=count, seed=i))
        for i, (ids, count) in enumerate(zip(prompts, answers, strict=True))
    ]
    while engine.busy:
        engine.step()
        yield requests


def profiled(engine: Engine, prompts: list[list[int]], steps: int = 12) -> list[list[Any]]:
    """Microseconds a decoding step by kernel, the longest first; then the host's own time."""
    from torch.profiler import ProfilerActivity, profile

    requests = [engine.submit([1, *ids[1:]], Sampling(max_tokens=4 * steps, seed=i)) for i, ids in enumerate(prompts)]
    while not all(request.logprobs for request in requests):
        engine.step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        begin = time.perf_counter()
        for _ in range(steps):
            engine.step()
        host = time.perf_counter() - begin
        torch.cuda.synchronize()
        wall = time.perf_counter() - begin
    found = sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)
    lines = [
        [event.key[:60], round(event.self_device_time_total / steps, 1), event.count // steps] for event in found[:16]
    ]
    total = sum(event.self_device_time_total for event in found) / steps
    for request in requests:
        engine.abort(request.number)
    engine.step()
    return [
        *lines,
        ["sum of kernels", round(total, 1)],
        ["wall", round(1e6 * wall / steps, 1)],
        ["host", round(1e6 * host / steps, 1)],
    ]


@torch.inference_mode()
def generate_speed(
    config: ModelConfig, prompts: list[list[int]], answers: list[int], most: int = 10**9
) -> dict[str, Any]:
    """`generate` of the whole batch until the longest answer; tokens past an answer's end do not count."""
    from transformers import AutoConfig, AutoModelForCausalLM

    hf = config.to_hf()
    hf.pop("num_nextn_predict_layers")
    hf.pop("architectures")
    with torch.device("cuda"):
        settings = AutoConfig.for_model(hf.pop("model_type"), **hf)
        model = AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16).eval()
    ids = torch.tensor(prompts, device="cuda")
    longest = min(max(answers), most)

    def run(count: int) -> None:
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            use_cache=True,
            max_new_tokens=count,
            min_new_tokens=count,
            pad_token_id=0,
        )
        assert out.shape[1] == ids.shape[1] + count

    run(4)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run(longest)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    tokens = sum(min(answer, longest) for answer in answers)
    return {"generate_tokens_s": round(tokens / seconds, 1), "generate_s": round(seconds, 2), "generate_steps": longest}


def compare(
    shape: str, count: int, prompt: int, answers: list[int], options: argparse.Namespace, most: int
) -> dict[str, Any]:
    config, rng = SHAPES[shape], random.Random(0)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(prompt)] for _ in range(count)]
    decoder = random_decoder(config)
    out = {"parameters": sum(p.numel() for p in decoder.parameters())}
    out |= engine_speed(decoder, prompts, answers, options.profile)
    del decoder
    torch.cuda.empty_cache()
    if not options.alone:
        out |= generate_speed(config, prompts, answers, most)
        out["ratio"] = round(out["tokens_s"] / out["generate_tokens_s"], 1)
    return out


def mixed(count: int) -> list[int]:
    rng = random.Random(1)
    return [512, *(rng.randrange(64, 513) for _ in range(count - 1))]


@torch.inference_mode()
def numerics(shape: str, gain: float, model: str = "", text: str = "") -> dict[str, Any]:
    """k3 = mean of r - 1 - log r, with r the learner's probability of a sampled token over the sampler's.

    Of a saved `model` instead of a shape, behind pieces of `text` (token ids, a .npy file).
    """
    rng = random.Random(2)
    decoder = load_model(Path(model), "cuda", torch.bfloat16) if model else random_decoder(SHAPES[shape], gain=gain)
    config = decoder.config
    settings = EngineSettings(max_running=64, max_length=600, cache_tokens=64 * 600, prefill_tokens=2048)
    engine = Engine(decoder, settings, V0)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(rng.randrange(16, 300))] for _ in range(100)]
    if text:
        ids_T = np.load(text)
        starts = [rng.randrange(len(ids_T) - 300) for _ in prompts]
        prompts = [ids_T[at : at + len(old)].tolist() for at, old in zip(starts, prompts, strict=True)]
    requests = [
        engine.submit(ids, Sampling(max_tokens=rng.randrange(60, 180), seed=i)) for i, ids in enumerate(prompts)
    ]
    while engine.busy:
        engine.step()
    exact = copy.deepcopy(decoder).float()  # the same weights, computed in float32
    differences, logprobs, plain, ours, theirs = [], [], [], [], []
    for start in range(0, len(requests), 20):
        part = requests[start : start + 20]
        ids = [np.array(request.tokens) for request in part]
        routes = [None if r.experts is None else routes_of(r.experts, len(r.tokens)) for r in part]
        for experts, found in ((routes, differences), ([None] * len(part), plain)):
            scores = (
                Packed(decoder, ids, [1.0] * len(part), experts).scores().float().cpu().split([len(x) for x in ids])
            )
            for request, score in zip(part, scores, strict=True):
                found.append(score[len(request.prompt) :].double() - torch.tensor(request.logprobs).double())
        scores = Packed(exact, ids, [1.0] * len(part), routes).scores().float().cpu().split([len(x) for x in ids])
        for request, score, difference in zip(part, scores, differences[-len(part) :], strict=True):
            ours.append(score[len(request.prompt) :].double() - torch.tensor(request.logprobs).double())
            theirs.append(ours[-1] - difference)
        logprobs += [x for request in part for x in request.logprobs]
    d, p, e, t = (torch.cat(parts) for parts in (differences, plain, ours, theirs))
    return {
        "tokens": len(d),
        "gain": gain,
        "k3": float((d.exp() - 1 - d).mean()),
        "k3_without_replay": float((p.exp() - 1 - p).mean()) if config.num_experts else None,
        "engine_from_float32": float((e.exp() - 1 - e).mean()),
        "learner_from_float32": float((t.exp() - 1 - t).mean()),
        "mean_abs": float(d.abs().mean()),
        "max_abs": float(d.abs().max()),
        "mean_logprob": float(np.mean(logprobs)),
    }


def publish() -> dict[str, Any]:
    """A learner's process (this one) and an engine's, which copies each version out of the learner's device memory."""
    learner = random_decoder(SHAPES["0.6B"], seed=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "board"
        board = create_board(path, learner)
        begin = time.perf_counter()
        for step in (1, 2):
            board.publish(learner, Version(0, step))
        seconds = (time.perf_counter() - begin) / 2
        command = [sys.executable, __file__, "--only", "reader", "--board", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return {**json.loads(done.stdout.splitlines()[-1]), "line": "publish", "learner_ms": round(1e3 * seconds, 2)}


@torch.inference_mode()
def reader(board: str) -> dict[str, Any]:
    config, rng = SHAPES["0.6B"], random.Random(3)
    decoder = random_decoder(config)
    settings = EngineSettings(max_running=64, max_length=1024, cache_tokens=64 * 1024, prefill_tokens=8192)
    engine = Engine(decoder, settings, V0)
    requests = [
        engine.submit([rng.randrange(config.vocab_size) for _ in range(256)], Sampling(max_tokens=300, seed=i))
        for i in range(64)
    ]
    while not all(len(request.logprobs) > 8 for request in requests):
        engine.step()
    pauses = []
    for version in (Version(0, 1), Version(0, 2)) * 4:
        for _ in range(6):
            engine.step()
        begin = time.perf_counter()
        engine.update(partial(WeightBoard.attach(Path(board)).load_into, version=version), version)
        torch.cuda.synchronize()
        pauses.append(1e3 * (time.perf_counter() - begin))
    while engine.busy:
        engine.step()
    assert all(len(set(request.versions)) == 3 and request.error is None for request in requests)
    return {"pauses_ms": [round(pause, 2) for pause in pauses], "first_ms": round(pauses[0], 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="lines, separated by commas")
    parser.add_argument("--profile", action="store_true", help="where a decoding step's time goes")
    parser.add_argument("--alone", action="store_true", help="without the peer")
    parser.add_argument("--model", default="", help="of the line numerics-model: a saved model")
    parser.add_argument("--text", default="", help="of the same: token ids to sample behind, a .npy file")
    parser.add_argument("--board", default="", help="of the line reader, which publish starts as a process of its own")
    options = o = parser.parse_args()
    lines: dict[str, Callable[[], dict[str, Any]]] = {
        "34M": lambda: compare("34M", 256, 256, [128] * 256, o, 128),
        "0.6B-256": lambda: compare("0.6B", 256, 512, mixed(256), o, 512),
        "0.6B-1": lambda: compare("0.6B", 1, 512, [512], o, 64),
        "moe-256": lambda: compare("moe", 256, 512, mixed(256), o, 64),
        "moe-1": lambda: compare("moe", 1, 512, [512], o, 64),
        "numerics": lambda: numerics("0.6B", 0.0),
        "numerics-sharp": lambda: numerics("0.6B", 2.0),
        "numerics-moe": lambda: numerics("moe", 0.0),
        "numerics-moe-sharp": lambda: numerics("moe", 2.0),
        "numerics-model": lambda: numerics("", 0.0, o.model, o.text),
        "publish": publish,
        "reader": lambda: reader(o.board),
    }
    failed = False
    names = (
        options.only.split(",")
        if options.only
        else [name for name in lines if name not in ("reader", "numerics-model")]
    )
    for name in names:
        begin = time.perf_counter()
        try:
            result = lines[name]()
        except Exception:
            result, failed = {"failed": traceback.format_exc().splitlines()[-6:]}, True
        print(json.dumps({"line": name, **result, "took_s": round(time.perf_counter() - begin, 1)}), flush=True)
        torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Sampling speed of the engine against `transformers` `generate`, same weights, same token counts, one run.

    python benchmarks/sample_speed.py            # a table
    python benchmarks/sample_speed.py --json     # one JSON object as the last line; exit 1 below the bar

Both sides sample 32 answers of equal length to 32 prompts of equal length, in one process and with the same number of
threads. Rounds alternate, so that a slow moment of the machine hits both; the figure is the ratio of the medians.
Every round has new prompts, so the engine's prefix cache never helps.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from etude.core.policy import Sampling, Version
from etude.core.settings import EngineSettings
from etude.engine.engine import Engine
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder

BAR = 1.5
SHAPES = {
    "1M": ModelConfig(2048, 128, 384, 4, 4, 2, 32),
    "5M": ModelConfig(4096, 256, 768, 5, 8, 4, 32),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--answer", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.set_num_threads(options.threads)

    results = {name: compare(config, options) for name, config in SHAPES.items()}
    passed = all(result["ratio"] >= BAR for result in results.values())
    for name, result in results.items():
        print(
            f"{name}: engine {result['engine']:,.0f} tokens/s, transformers {result['transformers']:,.0f} tokens/s, "
            f"{result['ratio']:.2f}x (bar {BAR}x)"
        )
    if options.json:
        print(json.dumps({"passed": passed, "bar": BAR, "settings": vars(options), "shapes": results}))
    return 0 if passed else 1


def compare(config: ModelConfig, options: argparse.Namespace) -> dict[str, float]:
    decoder = Decoder(config)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), decoder)
        peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    length = options.prompt + options.answer
    settings = EngineSettings(max_running=options.requests, max_length=length, cache_tokens=2 * length * 32)
    engine = Engine(decoder, settings, Version(0, 0))
    rng = random.Random(0)
    ours, theirs = [], []
    for round_ in range(options.rounds + 1):
        prompts = [[rng.randrange(config.vocab_size) for _ in range(options.prompt)] for _ in range(options.requests)]
        seconds = sample_ours(engine, prompts, options.answer), sample_theirs(peer, prompts, options.answer)
        if round_:  # the first warms up
            ours.append(seconds[0])
            theirs.append(seconds[1])
    tokens = options.requests * options.answer
    engine_speed, peer_speed = tokens / statistics.median(ours), tokens / statistics.median(theirs)
    return {
        "parameters": sum(p.numel() for p in decoder.parameters()),
        "engine": engine_speed,
        "transformers": peer_speed,
        "ratio": engine_speed / peer_speed,
    }


def sample_ours(engine: Engine, prompts: list[list[int]], answer: int) -> float:
    begin = time.perf_counter()
    requests = [engine.submit(ids, Sampling(max_tokens=answer, seed=i)) for i, ids in enumerate(prompts)]
    while engine.busy:
        engine.step()
    seconds = time.perf_counter() - begin
    assert all(len(request.sampled) == answer for request in requests)
    return seconds


@torch.inference_mode()
def sample_theirs(model: torch.nn.Module, prompts: list[list[int]], answer: int) -> float:
    ids = torch.tensor(prompts)
    begin = time.perf_counter()
    out = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=0,
        use_cache=True,
        min_new_tokens=answer,
        max_new_tokens=answer,
        pad_token_id=0,
    )
    seconds = time.perf_counter() - begin
    assert out.shape[1] == ids.shape[1] + answer
    return seconds


if __name__ == "__main__":
    sys.exit(main())

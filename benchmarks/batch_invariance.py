"""How far the neighbours in a batch move a request's log-probabilities on the CPU, and how often that changes a token.

Each request is sampled alone, then all of them in one engine to which they come at random moments. Sums of float32
products are added in another order for another number of rows (the matrix library takes other kernels), and a prompt
is computed in other pieces. Prints one JSON object.

    python benchmarks/batch_invariance.py --requests 200 --tokens 128 --hidden 256 --layers 4 --vocabulary 8192
"""

from __future__ import annotations

import argparse
import json
import random

import torch

from etude.core.policy import Sampling, Version
from etude.core.settings import EngineSettings
from etude.engine.engine import Engine
from etude.engine.request import Request
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder

SHARPER = 3.0  # times the first weights: a trained model's logits are further apart than those of a new one


def compare(requests: int, tokens: int, hidden: int, layers: int, vocabulary: int, seed: int = 0) -> dict[str, float]:
    torch.set_num_threads(1)
    shape = ModelConfig(vocabulary, hidden, 2 * hidden, layers, 4, 2, hidden // 4, max_position_embeddings=1024)
    decoder = Decoder(shape, seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim > 1:
                parameter.mul_(SHARPER)
    rng = random.Random(seed)
    work = [
        (tuple(rng.randrange(vocabulary) for _ in range(rng.randint(3, 200))), Sampling(tokens, 1.0, seed=number))
        for number in range(requests)
    ]
    settings = EngineSettings(max_running=16, cache_tokens=16_384, max_length=512, prefill_tokens=256)
    alone = [_sample(Engine(decoder, settings, Version(0, 0)), [one], rng)[0] for one in work]
    crowd = _sample(Engine(decoder, settings, Version(0, 0)), work, rng)
    changed, largest = 0, 0.0
    for one, other in zip(alone, crowd, strict=True):
        changed += one.sampled != other.sampled
        for mine, its, a, b in zip(one.sampled, other.sampled, one.logprobs, other.logprobs, strict=True):
            if mine != its:
                break  # from here on they are different texts
            largest = max(largest, abs(a - b))
    return {
        "requests": requests,
        "tokens": requests * tokens,
        "answers_changed": changed,
        "largest_difference": largest,
    }


def _sample(engine: Engine, work: list[tuple[tuple[int, ...], Sampling]], rng: random.Random) -> list[Request]:
    """All of it, a few more requests before each step."""
    waiting, made = list(work), list[Request]()
    while waiting or engine.busy:
        for _ in range(min(len(waiting), rng.randint(0, 3))):
            made.append(engine.submit(*waiting.pop(0)))
        engine.step()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"requests": 200, "tokens": 128, "hidden": 256, "layers": 4, "vocabulary": 8192, "seed": 0}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    print(json.dumps(compare(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()

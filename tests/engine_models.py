"""Small models, slow and obvious references, and a served model: fixtures of the engine, server and policy tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from etude.core.policy import Version
from etude.core.settings import EngineSettings
from etude.engine.engine import Engine
from etude.engine.request import Request
from etude.model.attention import PackedAttend
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder

VOCAB = 97


def make_decoder(seed: int = 0, layers: int = 2) -> Decoder:
    """Tiny, with sharp distributions, so that rounding decides nothing."""
    decoder = Decoder(ModelConfig(VOCAB, 32, 64, layers, 4, 2, 8, max_position_embeddings=256), seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return decoder


@pytest.fixture(scope="session")
def decoder() -> Decoder:
    """Shared by tests that only read it."""
    torch.set_num_threads(1)
    return make_decoder()


@pytest.fixture
def own_decoder() -> Decoder:
    """For tests that change weights."""
    return make_decoder()


@pytest.fixture(scope="session")
def other_decoder() -> Decoder:
    return make_decoder(seed=1)


@pytest.fixture(scope="session")
def settings() -> EngineSettings:
    return EngineSettings(max_running=6, cache_tokens=512, block_tokens=8, max_length=128, prefill_tokens=32)


@pytest.fixture
def engine(decoder: Decoder, settings: EngineSettings) -> Engine:
    return Engine(decoder, settings, Version(0, 0))


@pytest.fixture(scope="session")
def finish() -> Callable[[Engine], list[Request]]:
    """Steps an engine until nothing is left, with its books checked after every step."""

    def run(engine: Engine) -> list[Request]:
        done: list[Request] = []
        for _ in range(10_000):
            if not engine.busy:
                return done
            done += engine.step()
            engine.check()
        raise AssertionError("the engine does not come to an end")

    return run


@pytest.fixture(scope="session")
def until() -> Callable[[Engine, Callable[[], bool]], None]:
    """Steps an engine until something holds."""

    def run(engine: Engine, holds: Callable[[], bool]) -> None:
        for _ in range(1000):
            if holds():
                return
            engine.step()
        raise AssertionError("it never comes to that")

    return run


@pytest.fixture(scope="session")
def logprobs() -> Callable[..., torch.Tensor]:
    """float64 log-softmax of the model's logits after all of these ids, computed from nothing."""

    @torch.inference_mode()
    def compute(decoder: Decoder, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
        hidden = decoder(torch.tensor(list(ids)), torch.arange(len(ids)), PackedAttend([len(ids)]))
        return (decoder.logits(hidden[-1]).double() / temperature).log_softmax(-1)

    return compute


@pytest.fixture(scope="session")
def greedy(logprobs: Callable[..., torch.Tensor]) -> Callable[..., tuple[list[int], list[float]]]:
    """The answer of a loop without any cache, and its log-probabilities."""

    def run(decoder: Decoder, prompt: Sequence[int], count: int) -> tuple[list[int], list[float]]:
        ids, scores = list(prompt), []
        for _ in range(count):
            row = logprobs(decoder, ids)
            ids.append(int(row.argmax()))
            scores.append(float(row[ids[-1]]))
        return ids[len(prompt) :], scores

    return run


def _benchmark(name: str) -> ModuleType:
    """A file of benchmarks/, imported as it is when it runs as a program: it finds its neighbours."""
    folder = str(Path(__file__).parents[1] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


@pytest.fixture(scope="session")
def tiny_module() -> ModuleType:
    """The tiny model and the server process."""
    return _benchmark("serve_tiny")


@pytest.fixture(scope="session")
def soak_module() -> ModuleType:
    """The crowd of clients."""
    return _benchmark("serve_soak")


@pytest.fixture(scope="session")
def stress_module() -> ModuleType:
    """Random load."""
    return _benchmark("engine_stress")


@pytest.fixture(scope="session")
def tiny_model(tiny_module: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory that answers "say hello" and "call the tool" by heart."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tiny_module.train_tiny(folder)
    return folder


@pytest.fixture(scope="session")
def served(tiny_module: ModuleType, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`etude serve` with a key and the engine's routes, as a process of its own, for tests that leave it as it is."""
    log = tmp_path_factory.mktemp("served") / "log"
    settings = ("engine.max_running=8", "engine.max_waiting=64", "engine.max_length=128", "engine.cache_tokens=4096")
    small = ("engine.body_bytes=1000000", "run.threads=1", "--engine-routes")
    with tiny_module.served(tiny_model, log, *settings, *small, key="the-key-of-the-tests") as server:
        yield server
        assert "Traceback" not in log.read_text()

"""The suite that every engine must pass, on our own; and what of vLLM needs no vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.cluster.vllm import check_model, command, interpreter
from etude.core.errors import EtudeError
from etude.core.policy import Context, Sampling, Version
from etude.core.settings import EngineSettings
from etude.model.attention import PackedAttend
from etude.model.checkpoint.directory import load_model, named_weights, save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.weight_transfer.publish import ChainPublisher
from etude.policies.engine_client import launch
from etude.policies.engine_conformance import check_engine
from etude.policies.vllm_client import VLLMClient, _read


class DecoderLab:
    """The reference is the checkpoint of each version, computed without a cache by a decoder of this process."""

    vocabulary, longest, routes = 64, 600, None

    def __init__(self, model: Path, chain: str) -> None:
        self.decoder = load_model(model)
        self.publisher, self.version = ChainPublisher(chain, "test"), Version(0, 0)
        self.held = {self.version: self._copy()}
        self.publisher.publish(self.decoder, self.version)  # the base, so that what follows are deltas

    def publish(self, moved: bool) -> Version:
        self.version = Version(0, self.version.step + 1)
        if moved:
            with torch.no_grad():
                named_weights(self.decoder)["model.layers.1.self_attn.o_proj.weight"].mul_(-1)
        self.held[self.version] = self._copy()
        self.publisher.publish(self.decoder, self.version)
        return self.version

    def logprobs(self, version: Version, ids: Sequence[int]) -> Sequence[float]:
        now = self._copy()
        self._load(self.held[version])
        with torch.no_grad():
            hidden = self.decoder(torch.tensor(ids), torch.arange(len(ids)), PackedAttend([len(ids)]))
            scores = torch.log_softmax(self.decoder.logits(hidden).double(), -1)
        self._load(now)
        return [0.0, *(float(scores[place, token]) for place, token in enumerate(ids[1:]))]

    def _copy(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in named_weights(self.decoder).items()}

    def _load(self, weights: dict[str, torch.Tensor]) -> None:
        for name, tensor in named_weights(self.decoder).items():
            tensor.copy_(weights[name])


def test_our_engine_does_what_the_training_loop_asks_of_any(tmp_path: Path) -> None:
    config = ModelConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    save_model(tmp_path / "model", Decoder(config, seed=1))
    lab = DecoderLab(tmp_path / "model", str(tmp_path / "weights"))

    async def work() -> None:
        settings = EngineSettings(max_length=640, cache_tokens=16_384)
        async with await launch(tmp_path / "model", settings, chain=str(tmp_path / "weights")) as engine:
            found = {finding.name: finding for finding in await check_engine(engine, lab)}
            assert [name for name, finding in found.items() if not finding.passed] == [], found
            assert 0 < found["swap"].figures["density"] < 0.5

    try:
        asyncio.run(work())
    finally:
        lab.publisher.close()


def test_what_vllm_computes_wrongly_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deepseek_v3"}))
    with pytest.raises(EtudeError, match="deepseek_v3 wrongly"):
        check_model(tmp_path, "cpu")
    check_model(tmp_path, "cuda")
    with pytest.raises(EtudeError, match="vllm_python"):
        interpreter("")
    line = command(tmp_path, EngineSettings(max_length=77), python="p", device="cpu", socket=tmp_path / "s")
    assert line[0] == "p" and line[line.index("--max-model-len") + 1] == "77" and "--enforce-eager" in line


def test_an_answer_of_vllm_has_a_version_for_each_token_or_is_refused() -> None:
    spans = [{"version": "0.1", "start": 0, "end": 2}, {"version": "0.2", "start": 2, "end": 3}]
    content = [{"logprob": -0.5}, {"logprob": -1.0}, {"logprob": -2.0}]
    choice = {"token_ids": [5, 6, 7], "finish_reason": "length", "logprobs": {"content": content}}
    sample = _read({"choices": [choice | {"weight_versions": spans}], "usage": None}, 0)
    assert sample.versions == (Version(0, 1), Version(0, 1), Version(0, 2))
    assert sample.logprobs == (-0.5, -1.0, -2.0) and sample.stop == "length"
    for wrong in (spans[:1], None, [spans[1]]):
        with pytest.raises(EtudeError, match="vLLM's answer"):
            _read({"choices": [choice | {"weight_versions": wrong}]}, 0)


class LateServer(VLLMClient):
    """As vLLM: it says yes to every abort, also of a request that it has not begun yet."""

    def __init__(self, deaf: int) -> None:
        super().__init__("unix:/nowhere")
        self.deaf, self.aborted = deaf, asyncio.Event()

    async def _call(self, method: str, path: str, body: Any = None, deadline: float | None = None) -> Any:
        if path == "/abort_requests":
            assert body == {"request_ids": ["generate-tokens-mine"]}
            self.deaf -= 1
            if self.deaf < 0:
                self.aborted.set()
            return {"aborted": 1}
        await self.aborted.wait()
        return {"choices": [{"token_ids": [], "finish_reason": "abort", "logprobs": None, "weight_versions": []}]}


def test_a_request_that_vllm_has_not_begun_yet_is_aborted_all_the_same() -> None:
    async def work() -> None:
        engine = LateServer(deaf=2)
        asked = asyncio.ensure_future(engine.sample(Context(ids=(1, 2)), Sampling(8), name="mine"))
        while not engine._under_way:
            await asyncio.sleep(0)
        assert await engine.abort("mine")
        assert (await asked).stop == "abort"
        assert not await engine.abort("mine")  # it has ended

    asyncio.run(work())


def test_vllm_waits_while_the_store_of_its_weights_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"size": 9, "values": 4, "changed": 1}
    head = json.dumps({"links": [{"version": "0.1", "parts": [part]}]}).encode()
    answers: list[Any] = [EtudeError("s3://b: HEAD could not be read: 503"), b"{", (None), b'{"links": [1]}', head]

    class Store:
        def read_head(self, name: str) -> Any:
            found = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(found, EtudeError):
                raise found
            return found, ""

    monkeypatch.setattr("etude.policies.vllm_client.open_store", lambda _: Store())
    monkeypatch.setattr("etude.policies.vllm_client.LOOK", 0.0)

    async def work() -> None:
        engine = VLLMClient("unix:/nowhere", deadline=60.0)
        assert await engine._published(Version(0, 1)) == {"publish_bytes": 9, "publish_density": 0.25}
        engine.deadline = 0.05
        answers[:] = [EtudeError("s3://b: HEAD could not be read: 503")]
        with pytest.raises(EtudeError, match=r"version 0\.1 did not appear .* within 0\.05 s: s3://b: HEAD could not"):
            await engine._published(Version(0, 1))

    asyncio.run(asyncio.wait_for(work(), 60))

"""The endpoint policy against our own server: the same ids and log-probabilities as from the engine itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from etude.core.errors import EtudeError
from etude.core.policy import Context, ContextOverflow, Sampling, System, User, Version
from etude.core.settings import EndpointSettings, EngineSettings
from etude.engine.engine import Engine
from etude.engine.inline import InlinePolicy
from etude.engine.thread import EngineThread
from etude.harness.text_turns import read_turn, write_turn
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.policies.endpoint.policy import EndpointPolicy
from etude.serve.openai.app import OpenAIRoutes
from etude.tokens.dialect import ToolSchema
from etude.tokens.native import Native
from etude.tokens.parse import Malformed
from etude.tokens.tokenizer import Tokenizer

SETTINGS = EngineSettings(max_running=6, cache_tokens=2048, block_tokens=8, max_length=256, prefill_tokens=64)
DIALECT = Native(Tokenizer.train(["def f(x):\n    return x + 1\n"] * 5, 300))


def served(work: Callable[[EndpointPolicy], Awaitable[Any]], **settings: Any) -> tuple[Any, Any]:
    """What `work` gives with the endpoint policy, and with the engine in this process."""
    config = ModelConfig(DIALECT.vocab_size, 32, 64, 2, 4, 2, 8, max_position_embeddings=256)
    decoder = Decoder(config, 3)

    async def scenario() -> tuple[Any, Any]:
        thread = EngineThread(Engine(decoder, SETTINGS, Version(0, 0)))
        size = DIALECT.vocab_size
        routes = OpenAIRoutes(thread, SETTINGS, DIALECT, model="tiny", vocab_size=size, positions=256, key=None)
        runner = web.AppRunner(routes.application(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        chosen = EndpointSettings(**{"url": url, "model": "tiny", "logprobs": "sampled", "tries": 1} | settings)
        tools = [ToolSchema("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})]
        try:
            async with EndpointPolicy(chosen, write_turn=write_turn, tools=tools, decode=DIALECT.decode) as policy:
                there = await work(policy)
        finally:
            await runner.cleanup()
            await thread.stop()
        inline = InlinePolicy(Engine(decoder, SETTINGS, Version(0, 0)), decode=DIALECT.decode)
        return there, await work(inline) if settings.get("ids", True) else None  # type: ignore[arg-type]

    return asyncio.run(scenario())


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_ids_and_log_probabilities_are_those_of_the_engine(temperature: float) -> None:
    async def ask(policy: EndpointPolicy) -> Any:
        contexts = [Context(ids=tuple(range(30, 30 + length))) for length in (3, 40, 17)]
        stops = DIALECT.stop_ids
        return [
            await policy.sample(context, Sampling(24, temperature, seed=number, stop_ids=stops))
            for number, context in enumerate(contexts)
        ]

    there, here = served(ask)
    for served_sample, own in zip(there, here, strict=True):
        assert served_sample.ids == own.ids and served_sample.stop == own.stop and served_sample.text == own.text
        assert served_sample.logprobs == own.logprobs


def test_a_prompt_that_is_known_comes_from_the_cache() -> None:
    async def ask(policy: EndpointPolicy) -> Any:
        context = Context(ids=tuple(range(30, 80)))
        return [(await policy.sample(context, Sampling(4, seed=1))).cached_tokens for _ in range(2)]

    there, here = served(ask)
    assert there == here and there[1] > 0


def test_messages_and_tools_are_taken_and_answered_with_a_turn() -> None:
    async def ask(policy: EndpointPolicy) -> Any:
        return await policy.sample(Context((System("Be brief."), User("Hello"))), Sampling(20, seed=5))

    for form in ("text", "tools"):
        sample, _ = served(ask, ids=False, form=form)
        assert sample.ids is None and sample.stop in ("stop", "length")
        assert not isinstance(read_turn(sample.text), Malformed) or sample.stop == "length"


def test_refusals_of_the_server_are_said_at_once() -> None:
    async def too_long(policy: EndpointPolicy) -> Any:
        await policy.sample(Context(ids=(30,) * 300), Sampling(4))

    with pytest.raises(ContextOverflow, match=r"takes 256 tokens, and the prompt alone has 300"):
        served(too_long)
    with pytest.raises(ContextOverflow, match=r"no room for an answer .400.*maximum context length is 256.*300 tokens"):
        served(too_long, max_model_len=1000)  # a wrong setting of ours: the server knows better
    with pytest.raises(EtudeError, match=r"does not have that .404.*endpoint.model = 'other'"):
        served(too_long, model="other")

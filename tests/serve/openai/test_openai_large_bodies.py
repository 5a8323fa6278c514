"""Large bodies: what cannot fit is refused before the work, and the work never holds up the event loop."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp
from aiohttp import web

from etude.core.policy import Version
from etude.core.settings import EngineSettings
from etude.engine.engine import Engine
from etude.engine.thread import EngineThread
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.serve.openai.app import OpenAIRoutes
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer

DIALECT = Native(Tokenizer.train(["def f(x):\n    return x + 1\n"] * 5, 300))


def ask(context: int, messages: int) -> tuple[Any, float, float]:
    """The answer to a chat of many tiny messages; processor seconds of the event loop's thread, and of all threads."""
    settings = EngineSettings(max_running=2, cache_tokens=context, max_length=context)
    decoder = Decoder(ModelConfig(DIALECT.vocab_size, 16, 16, 1, 2, 1, 8, max_position_embeddings=context), 0)

    async def scenario() -> tuple[Any, float, float]:
        thread = EngineThread(Engine(decoder, settings, Version(0, 0)))
        size = DIALECT.vocab_size
        routes = OpenAIRoutes(thread, settings, DIALECT, model="tiny", vocab_size=size, positions=context, key=None)
        runner = web.AppRunner(routes.application(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}] * messages}).encode()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/chat/completions"
        try:
            async with aiohttp.ClientSession() as http:
                on_loop, in_all = time.thread_time(), time.process_time()
                async with http.post(url, data=body, headers={"Content-Type": "application/json"}) as got:
                    answer = got.status, (await got.json())["error"]
                return answer, time.thread_time() - on_loop, time.process_time() - in_all
        finally:
            await runner.cleanup()
            await thread.stop()

    return asyncio.run(scenario())


def test_more_messages_than_tokens_are_refused_before_they_are_read() -> None:
    (status, error), _, in_all = ask(context=2048, messages=200_000)
    assert status == 400 and error["code"] == "context_length_exceeded"
    assert "maximum context length is 2048 tokens" in error["message"] and "200000 messages" in error["message"]
    assert in_all < 1.5  # 4.5 with all of them validated and encoded


def test_many_messages_are_read_beside_the_event_loop() -> None:
    (status, error), on_loop, in_all = ask(context=1 << 15, messages=20_000)
    assert status == 400 and "tokens" in error["message"]
    assert on_loop < in_all / 4, f"{on_loop:.2f} s of {in_all:.2f} s on the event loop"

"""Pieces of an answer leave as they come, one for each word from the engine; and one that says nothing has an end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer

from etude.core.policy import Sampling
from etude.core.settings import EngineSettings
from etude.engine.request import Request
from etude.engine.thread import EngineThread, Tokens
from etude.serve.openai.app import OpenAIRoutes
from etude.serve.openai.choices import Answering, Choice
from etude.serve.openai.streaming import TextReader
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer

TEXT = "Hello, world! It is done."


class Paced:
    """An engine whose steps are told by hand: it samples the next burst when the last one was read."""

    def __init__(self, bursts: Sequence[Sequence[int]]) -> None:
        self.bursts = bursts
        self.next = asyncio.Semaphore(1)

    async def generate(self, prompt: tuple[int, ...], sampling: Sampling, *, listen: Any, rules: Any) -> Request:
        for burst in self.bursts:
            await self.next.acquire()
            for token in burst:
                listen(Tokens([token], [0.0], []))
        return Request(0, prompt, sampling, stop="stop")


@pytest.mark.parametrize("many", [1, 2, 5, 1000])
def test_a_piece_is_what_came_since_the_last_one(many: int) -> None:
    dialect = Native(Tokenizer.train([TEXT], 282))
    ids = dialect.encode(TEXT)
    bursts = [ids[at : at + many] for at in range(0, len(ids), many)]

    async def go() -> list[str]:
        engine = Paced(bursts)
        choice = Choice(0, 0, (1,), Sampling(), TextReader(dialect, ()))
        texts = []
        async with Answering(cast("EngineThread", engine), [choice], follow=True) as answering:
            async for _, piece in answering.pieces():
                texts.append(piece.delta.text)
                engine.next.release()
        return texts

    texts = asyncio.run(asyncio.wait_for(go(), 60))
    assert "".join(texts) == TEXT
    assert texts == [dialect.decode(burst) for burst in bursts] + [""] * (len(texts) - len(bursts))
    assert len(texts) - len(bursts) <= 1, "at most one that only says how it ended"


@pytest.mark.parametrize("more", [{}, {"echo": True, "logprobs": 0}, {"echo": True, "logprobs": 0, "max_tokens": 0}])
def test_an_engine_that_does_not_answer_is_waited_for_as_long_as_a_request_may_take(more: dict[str, Any]) -> None:
    class Stuck:
        async def call(self, *_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        generate = call

    async def go() -> None:
        settings = EngineSettings(request_seconds=1)
        dialect = Native(Tokenizer.train([TEXT], 282))
        routes = OpenAIRoutes(
            cast("EngineThread", Stuck()), settings, dialect, model="m", vocab_size=282, positions=2048, key=None
        )
        body = {"model": "m", "prompt": "Hello", **more}
        async with (
            TestClient(TestServer(routes.application())) as client,
            client.post("/v1/completions", json=body) as answer,
        ):
            assert answer.status == 504 and (await answer.json())["error"]["code"] == "timeout"

    asyncio.run(asyncio.wait_for(go(), 20))

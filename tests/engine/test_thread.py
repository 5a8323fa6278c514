"""Reading along while the engine samples: every token once, in order, before the answer, and no cost for others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from benchmarks.reference_ops import ReferenceOps
from etude.core.errors import EtudeError
from etude.core.policy import Sampling, Version
from etude.core.settings import EngineSettings
from etude.engine.cuda.runner import PagedRunner
from etude.engine.engine import Engine
from etude.engine.request import Request
from etude.engine.thread import EngineThread, Tokens, _Reader
from etude.model.decoder import Decoder

LONG = Sampling(max_tokens=60, temperature=1.0, seed=3, top_logprobs=2)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def test_a_reader_hears_every_token_once_and_in_order(engine: Engine) -> None:
    async def scenario() -> None:
        thread = EngineThread(engine)
        heard: list[list[Tokens]] = [[] for _ in range(4)]
        asks = [thread.generate((i, 5), LONG, listen=heard[i].append if i % 2 else None) for i in range(4)]
        answers = await asyncio.gather(*asks)
        for request, parts in zip(answers, heard, strict=True):
            joined = [
                [entry for part in parts for entry in getattr(part, name)] for name in ("ids", "logprobs", "tops")
            ]
            if request.prompt[0] % 2:
                assert joined == [request.sampled, request.logprobs, request.tops]
                assert len(parts) > 5, "it came while it was sampled"
            else:
                assert joined == [[], [], []]
        await thread.stop()

    run(scenario())


def test_a_reader_who_leaves_ends_the_request_and_a_refused_one_hears_nothing(engine: Engine) -> None:
    async def scenario() -> None:
        thread = EngineThread(engine)
        started = asyncio.Event()
        task = asyncio.create_task(thread.generate((1, 2), LONG, listen=lambda _: started.set()))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await thread.call(lambda e: e.stats()))["running"] == 0
        heard: list[Tokens] = []
        with pytest.raises(EtudeError, match="outside the vocabulary"):
            await thread.generate((10**6,), LONG, listen=heard.append)
        assert not heard
        await thread.stop()

    run(scenario())


def test_an_end_that_comes_after_its_reader_left_is_nobodys(decoder: Decoder, settings: EngineSettings) -> None:
    """Where steps are launched ahead, a request may end in the step that its abort waits for."""

    async def scenario() -> None:
        engine = Engine(decoder, settings, Version(0, 0), PagedRunner(decoder, settings, ReferenceOps()))
        thread = EngineThread(engine)
        ended: list[Request] = []

        def leave(engine: Engine) -> None:
            request = engine.submit((1, 2), Sampling(max_tokens=2))
            while request.missing:
                engine.step()
            assert engine.abort(request.number) is None and request.stop == "length"
            ended.append(request)

        await thread.call(leave)
        assert (await thread.generate((3, 4), Sampling(max_tokens=5))).stop == "length"
        assert thread.crash is None and ended
        await thread.stop()

    run(scenario())


def test_named_requests_tell_how_far_they_are_and_what_their_readers_heard(engine: Engine) -> None:
    async def scenario() -> None:
        thread, heard, enough = EngineThread(engine), list[int](), asyncio.Event()

        def listen(new: Tokens) -> None:
            heard.append(len(new.ids))
            if sum(heard) >= 16:
                enough.set()

        asked = asyncio.create_task(thread.generate((1, 2), LONG, "a.7.0", listen, every=8))
        await enough.wait()
        await thread.call(lambda engine: engine.pause())
        ((name, (sampled, told)),) = (await thread.running()).items()
        assert name == "a.7.0" and told == sum(heard) <= sampled < told + 8
        await thread.call(lambda engine: engine.resume())
        request = await asked
        # The rest comes with the answer, and not twice. A part is shorter where it is the first, or the first after the
        # pause: all readers hear after the same steps, and a paused engine's count too.
        assert all(0 < part <= 8 for part in heard) and sum(part < 8 for part in heard) <= 2
        assert 0 < len(request.sampled) - sum(heard) <= 8
        assert await thread.running() == {}
        await thread.stop()

    run(scenario())


def test_all_who_hear_after_several_steps_hear_after_the_same_ones() -> None:
    heard: list[Tokens] = []
    readers = [_Reader(Request(number, (1, 2), LONG), heard.append, every=4) for number in range(2)]
    told: list[list[int]] = []
    for step in range(1, 13):
        for reader, began in zip(readers, (1, 4), strict=True):
            if step >= began:
                reader.request.append(7, -1.0, Version(0, 0), None)
        told.append([len(news.ids) if (news := reader.news(step)) else 0 for reader in readers])
    assert {step: sizes for step, sizes in enumerate(told, 1) if any(sizes)} == {4: [4, 1], 8: [4, 4], 12: [4, 4]}

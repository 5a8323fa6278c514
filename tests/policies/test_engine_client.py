"""The client's deadlines and errors against servers that misbehave, and the policy without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from etude.core.errors import EtudeError
from etude.core.policy import Context, Sampling
from etude.engine.engine import Engine
from etude.engine.inline import InlinePolicy
from etude.model.decoder import Decoder
from etude.policies.engine_client import EngineClient

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def against(handler: Handler, work: Callable[[EngineClient], Awaitable[Any]], path: Path, deadline: float = 5.0) -> Any:
    """Runs `work` with a client of a server whose every answer is the handler's."""

    async def scenario() -> Any:
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.UnixSite(runner, str(path)).start()
        try:
            async with EngineClient(f"unix:{path}", deadline=deadline, sample_deadline=deadline) as client:
                return await work(client)
        finally:
            await runner.cleanup()

    return asyncio.run(scenario())


def test_a_silent_server_runs_into_the_deadline(tmp_path: Path) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    for work, name in (
        (lambda c: c.version(), "/version"),
        (lambda c: c.sample(Context(ids=(1,)), Sampling()), "/generate"),
        (lambda c: c.score((1, 2)), "/score"),
        (lambda c: c.pause(), "/pause"),
    ):
        with pytest.raises(EtudeError, match=rf"did not answer {name} within 0\.05 s"):
            against(silent, work, tmp_path / "s", deadline=0.05)


def test_a_server_that_hangs_up_is_reported(tmp_path: Path) -> None:
    async def rude(request: web.Request) -> web.StreamResponse:
        request.transport.close()  # type: ignore[union-attr]
        return web.Response()

    with pytest.raises(EtudeError, match="cannot be reached for /stats"):
        against(rude, lambda c: c.stats(), tmp_path / "s")


def test_an_answer_that_is_not_json_is_reported(tmp_path: Path) -> None:
    async def plain(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>proxy error</html>")

    with pytest.raises(EtudeError, match="cannot be reached for /stats"):
        against(plain, lambda c: c.stats(), tmp_path / "s")


def test_no_server_at_all_is_reported(tmp_path: Path) -> None:
    async def ask() -> None:
        async with EngineClient(f"unix:{tmp_path / 'none'}") as client:
            await client.version()

    with pytest.raises(EtudeError, match="cannot be reached for /version"):
        asyncio.run(ask())


def test_a_refusal_is_passed_on(tmp_path: Path) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "no such thing"}, status=400)

    with pytest.raises(EtudeError, match="refused /update: no such thing"):
        against(refuse, lambda c: c.update((0, 1)), tmp_path / "s")  # type: ignore[arg-type]


def test_text_cannot_be_sampled_without_ids(tmp_path: Path, engine: Engine) -> None:
    for policy in (EngineClient("unix:/nowhere"), InlinePolicy(engine)):
        with pytest.raises(EtudeError, match="render the context's messages first"):
            asyncio.run(policy.sample(Context(), Sampling()))


def test_the_inline_policy_samples_together_scores_and_decodes(
    engine: Engine, decoder: Decoder, greedy: Callable
) -> None:
    async def scenario() -> None:
        policy = InlinePolicy(engine, decode=lambda ids: " ".join(map(str, ids)))
        contexts = [Context(ids=tuple(range(i + 1))) for i in range(9)]
        answers = await asyncio.gather(*(policy.sample(c, Sampling(max_tokens=6, temperature=0.0)) for c in contexts))
        for context, answer in zip(contexts, answers, strict=True):
            expected, scores = greedy(decoder, context.ids, 6)
            assert list(answer.ids) == expected
            assert answer.text == " ".join(map(str, expected))
            scored = await policy.score((*context.ids, *answer.ids))
            assert scored[len(context.ids) :] == pytest.approx(scores, abs=1e-5)
        assert engine.counts.steps < 9 * 6, "they were sampled together"

    asyncio.run(scenario())


def test_a_cancelled_inline_sample_is_aborted(engine: Engine) -> None:
    async def scenario() -> None:
        policy = InlinePolicy(engine)
        task = asyncio.ensure_future(policy.sample(Context(ids=(1, 2)), Sampling(max_tokens=100)))
        while not engine.counts.sampled_tokens:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not engine.busy
        engine.check()

    asyncio.run(scenario())


def test_a_crash_of_the_inline_engine_reaches_everybody(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> None:
        raise RuntimeError("a bug of ours")

    async def scenario() -> list:
        policy = InlinePolicy(engine)
        monkeypatch.setattr(engine, "step", crash)
        asks = (policy.sample(Context(ids=(i,)), Sampling(max_tokens=3)) for i in (1, 2))
        return await asyncio.gather(*asks, return_exceptions=True)

    assert [repr(error) for error in asyncio.run(scenario())] == ["RuntimeError('a bug of ours')"] * 2

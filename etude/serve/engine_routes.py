"""What the training loop asks of an engine: token ids in and out, over HTTP and in binary frames.

    POST /generate  {ids, sampling, id?, routed?}   -> {ids, logprobs, versions, stop, cached_tokens, experts?}
    POST /score     {sequences, temperature?}       -> {logprobs, version}
    POST /abort     {id}                            -> {aborted}; the request is answered with what it has
    POST /pause     POST /resume                    -> {paused}
    POST /update    {version}                       -> {version, seconds, running}, from the weight board or chain
    GET  /version   GET /health   GET /stats   GET /facts   GET /running

Frames say the same on a connection of their own: in a profile on an H200, HTTP and JSON were 18% of the orchestrator's
time and 17% of the engine process's. Knows no process and no address: `server` listens.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from etude.core.errors import EtudeError
from etude.core.frame_calls import Answering, ConnectionLost, Send
from etude.core.policy import Sample, Sampling
from etude.core.settings import EngineSettings
from etude.core.transport import Frame, from_json
from etude.engine.request import EngineGone, QueueFull
from etude.serve import messages

if TYPE_CHECKING:
    from etude.engine.engine import Engine
    from etude.engine.thread import EngineThread, Listen, Tokens
    from etude.model.weight_transfer.receive import WeightSource

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
READING = ("version", "health", "stats", "facts", "running")  # verbs that change nothing


class EngineRoutes:
    """Reads a request, asks the engine's thread, answers."""

    def __init__(self, engine: EngineThread, settings: EngineSettings, weights: WeightSource | None) -> None:
        self.engine = engine
        self.settings = settings
        self.weights = weights
        self.draining = False
        self._updating = asyncio.Lock()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=self.settings.body_bytes, middlewares=[_errors])
        app.add_routes(self.routes())
        return app

    def routes(self) -> list[web.RouteDef]:
        def route(name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
            kind, verb = self.verbs()[name]

            async def answer(http: web.Request) -> web.Response:
                return web.json_response(await verb(await self._read(http, kind)))

            return answer

        asked = [name for name in self.verbs() if name not in READING]
        return [
            web.post("/generate", self.generate),
            *(web.post(f"/{name}", route(name)) for name in asked),
            *(web.get(f"/{name}", route(name)) for name in READING),
        ]

    def frames(self) -> Answering:
        """A server of binary frames that ask the same, for the processes of the training loop."""
        verbs = self.verbs()

        async def handle(frame: Frame, send: Send) -> Frame:
            verb = frame.header.get("verb")
            try:
                if verb == "generate":
                    request, sampling = messages.read_generate(frame)
                    listen = (lambda new: send(_part(new))) if request.every > 0 else None
                    return messages.write_sample_frame(await self.sample(request, sampling, listen))
                if not isinstance(verb, str) or verb not in verbs:
                    raise EtudeError(f"there is no verb {verb!r}")
                kind, answer = verbs[verb]
                return Frame({"message": await answer(from_json(kind, frame.header.get("message", {})))})
            # Not refusals of this request: the next engine at this address answers it.
            except EngineGone as gone:
                raise ConnectionLost(str(gone)) from None
            except web.HTTPServiceUnavailable as ending:
                raise ConnectionLost(ending.text or ending.reason) from None
            except web.HTTPException as http:  # as over HTTP, without its number
                raise EtudeError(http.text or http.reason) from None

        return Answering(handle, largest=self.settings.body_bytes)

    def verbs(self) -> dict[str, tuple[type[Any], Callable[[Any], Awaitable[dict[str, Any]]]]]:
        """What is asked of an engine beside samples, by name: the request's kind, and what answers it."""
        return {
            "score": (messages.ScoreRequest, self.score),
            "abort": (messages.AbortRequest, self.abort),
            "pause": (messages.EmptyRequest, self.pause),
            "resume": (messages.EmptyRequest, self.resume),
            "update": (messages.UpdateRequest, self.update),
            "pin": (messages.UpdateRequest, self.pin),
            "version": (messages.EmptyRequest, self.version),
            "health": (messages.EmptyRequest, self.health),
            "stats": (messages.EmptyRequest, self.stats),
            "facts": (messages.EmptyRequest, self.facts),
            "running": (messages.EmptyRequest, self.running),
        }

    async def generate(self, http: web.Request) -> web.Response:
        request = await self._read(http, messages.GenerateRequest)
        sampled = await self.sample(request, messages.read_sampling(request.sampling))
        return web.json_response(messages.write_sample(sampled))

    async def sample(
        self, request: messages.GenerateRequest, sampling: Sampling, listen: Listen | None = None
    ) -> Sample:
        """An answer; `listen` hears of its tokens, `request.every` so many at once, while it is under way."""
        # Asked after the body has come, since that may take until the server is shutting down.
        if self.draining:
            raise web.HTTPServiceUnavailable(text="the engine is shutting down and takes no new requests")
        if not 0 <= request.routed <= len(request.ids):
            raise EtudeError(f"'routed' must be a number of the request's {len(request.ids)} tokens")
        seconds = self.settings.request_seconds
        try:
            async with asyncio.timeout(seconds):
                finished = await self.engine.generate(
                    request.ids,
                    sampling,
                    request.id,
                    listen,
                    routed=request.routed,
                    version=request.version,
                    every=request.every,
                )
        except TimeoutError:
            raise web.HTTPGatewayTimeout(
                text=f"the request was ended after engine.request_seconds = {seconds}"
            ) from None
        if finished.error is not None:
            raise web.HTTPInternalServerError(text=finished.error)
        return finished.answer()

    async def score(self, request: messages.ScoreRequest) -> dict[str, Any]:
        logprobs, version = await self.engine.call(
            lambda engine: (engine.score(request.sequences, request.temperature), str(engine.version))
        )
        return {"logprobs": logprobs, "version": version}

    async def abort(self, request: messages.AbortRequest) -> dict[str, Any]:
        return {"aborted": await self.engine.abort(request.id)}

    async def pause(self, _: messages.EmptyRequest) -> dict[str, Any]:
        await self.engine.call(lambda engine: engine.pause())
        return {"paused": True}

    async def resume(self, _: messages.EmptyRequest) -> dict[str, Any]:
        await self.engine.call(lambda engine: engine.resume())
        return {"paused": False}

    async def update(self, request: messages.UpdateRequest) -> dict[str, Any]:
        version, source = request.version, self.weights
        if source is None:
            raise EtudeError("this engine was started without a weight board, so it cannot be updated")
        async with self._updating:
            # Asking twice for one version is no error: an answer may get lost.
            if await self.engine.call(lambda engine: engine.version == version):
                load, facts = None, dict[str, Any]()
            else:
                # In a thread of its own: the engine samples on while a chain is read.
                load, facts = await asyncio.to_thread(source.ready, version)

            def work(engine: Engine) -> dict[str, Any]:
                begin = time.perf_counter()
                if load is not None:
                    engine.update(load, version)
                seconds = time.perf_counter() - begin
                return {"version": str(engine.version), "seconds": seconds, "running": len(engine.scheduler.running)}

            return await self.engine.call(work) | facts

    async def pin(self, request: messages.UpdateRequest) -> dict[str, Any]:
        version = request.version
        await self.engine.call(lambda engine: engine.pin(version))
        return {"pinned": str(version)}

    async def version(self, _: messages.EmptyRequest) -> dict[str, Any]:
        return {"version": await self.engine.call(lambda e: str(e.version))}

    async def health(self, _: messages.EmptyRequest) -> dict[str, Any]:
        """Answers without the engine's thread, and says how long ago that came round: a stuck one is visible."""
        idle = time.monotonic() - self.engine.turned
        return {"ok": True, "pending": self.engine.pending, "seconds_since_step": idle}

    async def stats(self, _: messages.EmptyRequest) -> dict[str, Any]:
        return await self.engine.call(lambda e: e.stats())

    async def facts(self, _: messages.EmptyRequest) -> dict[str, Any]:
        return await self.engine.call(
            lambda e: {"version": str(e.version), "routed_experts": bool(e.decoder.config.sparse_layers)}
        )

    async def running(self, _: messages.EmptyRequest) -> dict[str, Any]:
        return dict(await self.engine.running())

    def refuse(self, status: int, sentence: str) -> web.Response:
        return web.json_response({"error": sentence}, status=status)

    async def _read(self, request: web.Request, kind: type[T]) -> T:
        seconds = self.settings.arrive_seconds
        try:
            async with asyncio.timeout(seconds):
                text = await request.text()
        except TimeoutError:
            raise web.HTTPRequestTimeout(
                text=f"the body did not arrive within engine.arrive_seconds = {seconds}"
            ) from None
        except (ValueError, LookupError, web.RequestPayloadError):
            raise EtudeError("the body cannot be read: its encoding is broken") from None
        try:
            body = json.loads(text) if text else {}
        except (ValueError, RecursionError) as broken:
            raise EtudeError(f"the body is not JSON ({broken})") from None
        return from_json(kind, body)


def _part(new: Tokens) -> Frame:
    """News of an answer under way; why it stops is not known yet."""
    ids, logprobs, versions = tuple(new.ids), tuple(new.logprobs), tuple(new.versions)
    return messages.write_sample_frame(Sample("", "abort", ids, logprobs, versions, new.cached_tokens))


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal is JSON with one sentence."""
    try:
        return await handler(request)
    except QueueFull as full:
        return web.json_response({"error": str(full)}, status=429)
    except EngineGone as gone:
        return web.json_response({"error": str(gone)}, status=500)
    except EtudeError as refused:
        return web.json_response({"error": str(refused)}, status=400)
    except web.HTTPException as http:
        return web.json_response({"error": http.text or http.reason}, status=http.status)

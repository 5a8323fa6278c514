"""The routes of `etude serve`, and the life of a request: let in, read, sampled, said.

    POST /v1/chat/completions   POST /v1/completions   POST /v1/responses   POST /tokenize   POST /detokenize
    GET  /v1/models   GET /v1/models/{model}   GET /health   GET /metrics   GET /openapi.json

Requests share the engine with each other and, where asked for, with the engine's own routes. A stream is written as
fast as its client reads: tokens wait here, never the engine, and a client that stops reading is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from aiohttp import web

from etude.core.policy import Sampling
from etude.core.settings import EngineSettings
from etude.engine.prompt_scores import PromptScores
from etude.engine.thread import EngineThread
from etude.serve.openai.api_key import Gate
from etude.serve.openai.body import Bodies
from etude.serve.openai.choices import Answering, Choice, ChoiceDelta
from etude.serve.openai.errors import RETRY, ApiError, Handler, api_error_of, errors_as_json
from etude.serve.openai.grammar import Grammars
from etude.serve.openai.metrics import CONTENT_TYPE, Metrics
from etude.serve.openai.openapi import document
from etude.serve.openai.prompts import Prompts
from etude.serve.openai.request_models import MOST_TOOLS, ChatRequest, CompletionRequest, ToolFunction, request_models
from etude.serve.openai.responses import ChatWriter, CompletionWriter, ResponseOptions, ResponseWriter, usage_of
from etude.serve.openai.responses_route import ResponsesWriter, chat_body
from etude.serve.openai.steering import Steering, steering_of
from etude.serve.openai.streaming import TextReader, TurnReader, token_bytes
from etude.serve.openai.tokenize_models import read_detokenize, read_tokenize, tokenize_models
from etude.serve.openai.validation import read_chat, read_completion
from etude.tokens.dialect import Dialect

Body = ChatRequest | CompletionRequest
OPEN = ("/health",)  # routes that never need the key
USAGE = "usage"  # under which a request keeps what it cost, for the access log
LOOK_SECONDS = 5.0  # for the engine to report its figures


@dataclass(frozen=True)
class Asked:
    """A conversation that is ready to be answered."""

    body: ChatRequest
    ids: list[int]
    dialect: Dialect
    steering: Steering

    @property
    def functions(self) -> list[ToolFunction]:
        return self.body.functions_offered


class OpenAIRoutes:
    """The HTTP side of one served model."""

    def __init__(
        self,
        engine: EngineThread,
        settings: EngineSettings,
        dialect: Dialect,
        *,
        model: str,
        vocab_size: int,
        positions: int,
        key: str | None,
        engine_routes: Sequence[web.RouteDef] = (),
        access_log: TextIO | None = None,
    ) -> None:
        self.draining = False
        self.metrics = Metrics()
        self._access_log = access_log
        self._engine, self._settings, self._dialect, self._model = engine, settings, dialect, model
        # A request has to fit in the cache alone, and that is made of whole blocks.
        whole_blocks = settings.cache_tokens // settings.block_tokens * settings.block_tokens
        self._prompts = Prompts(dialect, min(settings.max_length, positions, whole_blocks))
        self._created = int(time.time())
        self._gate, self._bodies = Gate(key), Bodies(settings.body_bytes, settings.arrive_seconds)
        self._chat, self._completion = request_models(model, vocab_size)
        self._engine_routes = engine_routes
        self._vocab_size, self._grammars = vocab_size, Grammars(dialect, vocab_size)
        self._tokenize, self._detokenize = tokenize_models(model, vocab_size)
        bodies = (self._chat, self._completion, self._tokenize, self._detokenize)
        self._document = document(*bodies, key=key is not None)

    def application(self) -> web.Application:
        # Outermost first: refusals are counted with the status that they are answered with.
        app = web.Application(
            client_max_size=self._settings.body_bytes, middlewares=[self._count, errors_as_json, self._admit]
        )
        own = [
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.completions),
            web.post("/v1/responses", self.responses),
            web.post("/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
            web.get("/v1/models", self.models),
            web.get("/v1/models/{model:.+}", self.model),
            web.get("/health", self.health),
            web.get("/metrics", self.show_metrics),
            web.get("/openapi.json", self.openapi),
        ]
        # Both sides have /health. This one says 503 once the server is shutting down.
        taken = {route.path for route in own}
        app.add_routes([*own, *(route for route in self._engine_routes if route.path not in taken)])
        return app

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = await self._bodies.read(request, self._chat_prompt)
        return await self._answer_chat(request, asked, ChatWriter(self._options(asked.body), asked.functions))

    async def responses(self, request: web.Request) -> web.StreamResponse:
        asked = await self._bodies.read(request, lambda body: self._chat_prompt(chat_body(body)))
        return await self._answer_chat(request, asked, ResponsesWriter(self._options(asked.body), asked.functions))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body, prompts = await self._bodies.read(request, self._completion_prompts)
        writer = CompletionWriter(self._options(body))
        echoes: Sequence[PromptScores | None] = [None] * len(prompts)
        if body.echo:
            for ids in prompts:
                self._prompts.room(len(ids), 0)
            try:
                async with asyncio.timeout(self._settings.request_seconds):
                    echoes = [await self._prompt_scores(ids, body) for ids in prompts]
            except TimeoutError:
                raise self._late() from None

        def choice(index: int, number: int, prompt: Sequence[int], sampling: Sampling) -> Choice:
            reader = TextReader(self._dialect, body.stops)
            echo = echoes[index // body.choices]
            return Choice(index, number, tuple(prompt), sampling, reader, body.rules(), echo)

        if body.max_tokens == 0:  # an evaluation that wants to know the prompt's log-probabilities alone
            many = [(prompt, number) for prompt in prompts for number in range(body.choices)]
            choices = [choice(i, number, prompt, Sampling()) for i, (prompt, number) in enumerate(many)]
            wholes = [replace(self._echoed(one, body), finish="length") for one in choices]
            return web.json_response(writer.whole(choices, wholes))
        return await self._answer(request, body, prompts, writer, choice)

    async def tokenize(self, request: web.Request) -> web.Response:
        """Ids of a text, or of a conversation as the model sees it: vLLM's route."""
        ids = await self._bodies.read(request, self._tokenized)
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": self._prompts.context})

    async def detokenize(self, request: web.Request) -> web.Response:
        body = await self._bodies.read(request, lambda value: read_detokenize(value, self._detokenize))
        data = b"".join(token_bytes(self._dialect, token) for token in body.tokens)
        return web.json_response({"prompt": data.decode("utf-8", "replace")})

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._card()]})

    async def model(self, request: web.Request) -> web.Response:
        if request.match_info["model"] != self._model:
            raise ApiError(404, f"there is no such model; this server has {self._model!r}", code="model_not_found")
        return web.json_response(self._card())

    async def health(self, request: web.Request) -> web.Response:
        """Answers without the engine's thread, and says how long ago that came round: a stuck one is visible."""
        idle = time.monotonic() - self._engine.turned
        if self.draining or self._engine.ended.is_set():
            raise self._closing()
        return web.json_response({"ok": True, "pending": self._engine.pending, "seconds_since_step": idle})

    async def show_metrics(self, request: web.Request) -> web.Response:
        stats = None
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                stats = await self._engine.call(lambda engine: engine.stats())
        except TimeoutError:
            pass  # the page says that the engine did not answer
        return web.Response(text=self.metrics.text(stats), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, request: web.Request) -> web.Response:
        return web.json_response(self._document)

    def refuse(self, status: int, sentence: str) -> web.Response:
        return ApiError(status, sentence).response()

    async def _answer(
        self,
        request: web.Request,
        body: Body,
        prompts: Sequence[Sequence[int]],
        writer: ResponseWriter,
        make: Callable[[int, int, Sequence[int], Sampling], Choice],
    ) -> web.StreamResponse:
        sampling = body.sampling(body.limit, body.tops)
        stop_ids = sampling.stop_ids + (() if body.ignore_eos else self._dialect.stop_ids)
        choices: list[Choice] = []
        for prompt in prompts:
            room = self._prompts.room(len(prompt), sampling.max_tokens)
            for number in range(body.choices):
                # Each choice has a seed of its own: with one for all of them, all would be equal.
                own = replace(sampling, seed=sampling.seed + number, max_tokens=room, stop_ids=stop_ids)
                choices.append(make(len(choices), number, prompt, own))
        began = time.monotonic()
        # Where nobody reads along the engine hands over nothing before the end.
        answering = Answering(self._engine, choices, follow=bool(body.stream or body.stops))
        try:
            if body.stream:
                return await self._stream(request, body, choices, answering, writer)
            async with asyncio.timeout(self._settings.request_seconds), answering:
                wholes = [ChoiceDelta.empty() for _ in choices]
                for choice in choices:
                    if choice.echo is not None:
                        wholes[choice.index].add(self._echoed(choice, body))
                async for choice, piece in answering.pieces():
                    wholes[choice.index].add(piece)
            return web.json_response(writer.whole(choices, wholes))
        except TimeoutError:
            raise self._late() from None
        finally:
            # Of requests that failed or were dropped as well: they used the engine, too.
            self._count_tokens(choices, began, answering.first)
            told = usage_of(choices)
            request[USAGE] = {name: told[name] for name in ("prompt_tokens", "completion_tokens")}

    async def _stream(
        self, request: web.Request, body: Body, choices: Sequence[Choice], answering: Answering, writer: ResponseWriter
    ) -> web.StreamResponse:
        """Server-sent events. What fails before the first one is an ordinary error, later it is an event."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        begun: set[int] = set()
        self.metrics.streams += 1
        try:
            async with asyncio.timeout(self._settings.request_seconds), answering:
                async for choice, piece in answering.pieces():
                    if not response.prepared:
                        await response.prepare(request)
                    chunks = [] if choice.index in begun else list(writer.begin(choice))
                    if choice.index not in begun and choice.echo is not None:
                        chunks += writer.say(choice, self._echoed(choice, body))
                    begun.add(choice.index)
                    chunks += writer.say(choice, piece)
                    if chunks:
                        await self._write(request, response, b"".join(map(_event, chunks)))
            last = _event(writer.usage(choices)) if body.include_usage else b""
            done = b"data: [DONE]\n\n" if writer.ends_with_done else b""
            await self._write(request, response, last + done, end=True)
        except _Stalled:
            self.metrics.dropped["slow reader"] += 1
        except ConnectionError:
            self.metrics.dropped["client left"] += 1
        except Exception as error:
            refusal = self._late() if isinstance(error, TimeoutError) else api_error_of(error)
            if not response.prepared:
                raise refusal from None
            with contextlib.suppress(ConnectionError):
                await self._write(request, response, _event(refusal.body))
        finally:
            self.metrics.streams -= 1
        return response

    async def _write(
        self, request: web.Request, response: web.StreamResponse, data: bytes, *, end: bool = False
    ) -> None:
        try:
            async with asyncio.timeout(self._settings.stall_seconds):
                await (response.write_eof(data) if end else response.write(data))
        except TimeoutError:
            # `abort`: `close` would wait until the client has taken what lies in the buffer.
            if request.transport is not None:
                request.transport.abort()
            raise _Stalled from None

    def _options(self, body: Body) -> ResponseOptions:
        token_ids = bool(body.return_token_ids)
        return ResponseOptions(
            self._model, self._dialect, body.wants_logprobs, body.tops, token_ids, body.include_usage
        )

    def _count_tokens(self, choices: Sequence[Choice], began: float, first: float | None) -> None:
        self.metrics.prompt_tokens += sum(len(choice.prompt) for choice in choices)
        self.metrics.answer_tokens += sum(choice.tokens for choice in choices)
        self.metrics.duration.observe(time.monotonic() - began)
        if first is not None:
            self.metrics.first_token.observe(first - began)

    def _card(self) -> dict[str, Any]:
        card = {"id": self._model, "object": "model", "created": self._created, "owned_by": "etude"}
        return card | {"max_model_len": self._prompts.context}

    async def _answer_chat(self, request: web.Request, asked: Asked, writer: ResponseWriter) -> web.StreamResponse:
        body = asked.body
        calls = 0 if not asked.functions else 1 if body.parallel_tool_calls is False else MOST_TOOLS

        def choice(index: int, number: int, prompt: Sequence[int], sampling: Sampling) -> Choice:
            reader = TurnReader(asked.dialect, body.stops, asked.steering.opening, calls)
            constraint = asked.steering.constraint(asked.dialect, self._grammars, self._vocab_size)
            return Choice(index, number, tuple(prompt), sampling, reader, body.rules(constraint))

        return await self._answer(request, body, [asked.ids], writer, choice)

    def _chat_prompt(self, body: Any) -> Asked:
        self._prompts.refuse_sum(body)
        request = read_chat(body, self._chat)
        dialect = self._prompts.dialect(request.template_options)
        steering = steering_of(request, dialect, self._grammars)
        # A schema that cannot be followed is refused here, where its compilation holds nobody up.
        steering.constraint(dialect, self._grammars, self._vocab_size)
        return Asked(request, self._prompts.of_chat(request) + steering.opening, dialect, steering)

    def _tokenized(self, body: Any) -> list[int]:
        self._prompts.refuse_sum(body)
        request = read_tokenize(body, self._tokenize)
        if request.prompt is not None:
            return self._prompts.encoded(request.prompt)
        chat = read_chat({**request.chat_fields, "model": self._model}, self._chat)
        return self._prompts.of_chat(chat, open_turn=request.add_generation_prompt is not False)

    async def _prompt_scores(self, ids: Sequence[int], body: CompletionRequest) -> PromptScores:
        if not body.wants_logprobs:
            return PromptScores([], [])
        return await self._engine.call(lambda engine: engine.prompt_scores(ids, body.tops))

    def _echoed(self, choice: Choice, body: Body) -> ChoiceDelta:
        data = b"".join(token_bytes(self._dialect, token) for token in choice.prompt)
        piece = choice.echoed(data.decode("utf-8", "replace"))
        return piece if body.wants_logprobs else ChoiceDelta(piece.delta, [], [], [])

    def _completion_prompts(self, body: Any) -> tuple[CompletionRequest, list[list[int]]]:
        request = read_completion(body, self._completion)
        return request, self._prompts.of_texts(request)

    def _late(self) -> ApiError:
        sentence = f"the request was ended after engine.request_seconds = {self._settings.request_seconds}"
        return ApiError(504, sentence, code="timeout")

    def _closing(self) -> ApiError:
        sentence = "the server is shutting down and takes no new requests"
        return ApiError(503, sentence, code="shutting_down", headers=RETRY, close=True)

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN:
            self._gate.check(request)
        # What only looks (/health, /metrics, /v1/models) is answered until the end.
        if self.draining and request.method == "POST":
            raise self._closing()
        return await handler(request)

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "other"
        began = time.monotonic()
        try:
            response = await handler(request)
        except asyncio.CancelledError:
            self.metrics.dropped["client left"] += 1
            self._log_access(request, 499, began)  # nginx's number for a client that left
            raise
        self.metrics.answers[route, response.status] += 1
        self._log_access(request, response.status, began)
        return response

    def _log_access(self, request: web.Request, status: int, began: float) -> None:
        """One line of JSON a request: never its body, its query or its key."""
        if self._access_log is None:
            return
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "client": request.remote,
            "method": request.method,
            "path": request.path[:200],
            "status": status,
            "seconds": round(time.monotonic() - began, 4),
        }
        print(json.dumps(entry | request.get(USAGE, {})), file=self._access_log, flush=True)


class _Stalled(ConnectionError):
    """A client that does not read its stream; its connection is cut."""


def _event(value: dict[str, Any]) -> bytes:
    kind = f"event: {value['type']}\n".encode() if "type" in value else b""  # events of /v1/responses have names
    return kind + b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"

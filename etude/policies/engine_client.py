"""The engine from outside: a policy and a scorer that ask an engine server, and the start of such a server.

A server on a local socket that we started is asked in binary frames, any other over HTTP. With `patience`, a sample
whose server is gone waits for another one at the same address and is asked again: a rollout goes on from its last turn.

Never imports torch, so an orchestrator stays small. Every call has a deadline and an error that says what was waited
for; when the server is a process that we started and it died, the error shows the end of its log.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from etude.core.child_process import Child, start
from etude.core.errors import EtudeError
from etude.core.frame_calls import Caller, ConnectionLost
from etude.core.policy import Context, Sample, Sampling, Version
from etude.core.settings import EngineSettings
from etude.core.tcp_address import FILE
from etude.core.transport import Frame, to_json
from etude.policies.engine_protocol import EngineFacts
from etude.serve import messages

AGAIN = 0.1  # seconds between two tries of a sample whose server is gone


class EngineClient:
    """A `Policy` and a `Scorer` at an address (`unix:/path`, `file:/path`, `http://host:port`), plus the weight verbs.

    `decode` turns sampled ids into the sample's text; without it the text is empty. `key` is the API key of a served
    model (`etude serve --engine-routes`).
    """

    keep_alive = True  # a connection serves more than one request

    def __init__(
        self,
        address: str,
        *,
        decode: Callable[[Sequence[int]], str] | None = None,
        deadline: float = 60.0,
        sample_deadline: float = 3600.0,
        server: Child | None = None,
        key: str | None = None,
        patience: float = 0.0,
    ) -> None:
        self.address = address
        self.decode = decode
        self.deadline = deadline  # seconds, for every verb but sample
        self.sample_deadline = sample_deadline  # seconds
        self.server = server
        self.patience = patience  # seconds that a sample waits for a server that is gone to come back
        self._names, self._numbers = uuid.uuid4().hex, itertools.count()
        self._frames: Caller | None = None
        self._headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        self._http: aiohttp.ClientSession | None = None

    async def sample(
        self,
        context: Context,
        sampling: Sampling,
        *,
        name: str | None = None,
        version: Version | None = None,
        on_part: Callable[[Sample], None] | None = None,
        every: int = 0,
    ) -> Sample:
        """Samples an answer; cancelling the call aborts it in the engine. `name` is for `abort`.

        With a `version`, which must be pinned, all of it is sampled by those weights. `on_part` hears of its tokens
        while it is under way, `every` so many at once, from a server that takes frames. With
        `on_part`, a server that is gone raises at once, whatever the patience: who has the parts asks for the rest.
        """
        if context.ids is None:
            raise EtudeError("the engine samples from token ids; render the context's messages first")
        body: dict[str, Any] = {"ids": list(context.ids), "sampling": messages.write_sampling(sampling)}
        if name is not None:
            body["id"] = name
        if context.routed:
            body["routed"] = context.routed
        if version is not None:
            body["version"] = str(version)
        if on_part is not None and every and self._caller() is not None:
            body["every"] = every
        if sampling.seconds:
            body["id"] = name or f"{self._names}-{next(self._numbers)}"
            sample = await self._sample_within(body, sampling.seconds, on_part)
        else:
            sample = await self._generate(body, on_part)
        if self.decode is None:
            return sample
        return Sample(**{**vars(sample), "text": self.decode(sample.ids or ())})

    async def _sample_within(
        self, body: dict[str, Any], seconds: float, on_part: Callable[[Sample], None] | None
    ) -> Sample:
        """An answer that is ended after some time: what there is of it then counts as cut at its longest.

        One that nothing is there of never left the queue, and that is no answer at all.
        """
        ends: list[asyncio.Task[bool]] = []
        name = body["id"]
        timer = asyncio.get_running_loop().call_later(
            seconds, lambda: ends.append(asyncio.ensure_future(self.abort(name)))
        )
        try:
            sample = await self._generate(body, on_part)
            aborted = bool(ends) and await ends[0]
        finally:
            timer.cancel()
            for end in ends:
                end.cancel()
        if not aborted or sample.stop != "abort":
            return sample
        if not sample.ids:
            raise EtudeError(f"the engine at {self.address} did not begin an answer within {seconds:g} s")
        return dataclasses.replace(sample, stop="length", late=True)

    async def _generate(self, body: dict[str, Any], on_part: Callable[[Sample], None] | None) -> Sample:
        def on_news(frame: Frame) -> None:
            if on_part is not None:
                on_part(messages.read_sample_frame(frame))

        waited = 0.0
        while True:
            try:
                return await self._answer(body, on_news)
            except ConnectionLost:
                # What it said of this answer is with whoever listens, and so is the rest to ask for.
                if waited >= self.patience or on_part is not None:
                    raise
            waited += AGAIN
            await asyncio.sleep(AGAIN)

    async def _answer(self, body: dict[str, Any], on_news: Callable[[Frame], None]) -> Sample:
        frames = self._caller()
        if frames is None:
            return messages.read_sample(await self._call("POST", "/generate", body, self.sample_deadline))
        request = messages.write_generate(body)
        found = await self._ask(frames, request, "/generate", self.sample_deadline, on_news)
        return messages.read_sample_frame(found)

    async def score(self, ids: tuple[int, ...], temperature: float = 1.0) -> tuple[float, ...]:
        return (await self.score_all([ids], temperature))[0]

    async def score_all(self, sequences: Sequence[Sequence[int]], temperature: float = 1.0) -> list[tuple[float, ...]]:
        """Log-probabilities of many sequences, all under one version."""
        body = {"sequences": [list(ids) for ids in sequences], "temperature": temperature}
        answer = await self._call("POST", "/score", body, self.sample_deadline)
        return [tuple(logprobs) for logprobs in answer["logprobs"]]

    async def abort(self, name: str) -> bool:
        """Ends a request by its name; its `sample` returns what there is. False if it is not there (any more)."""
        return bool((await self._call("POST", "/abort", {"id": name}))["aborted"])

    async def pause(self) -> None:
        await self._call("POST", "/pause")

    async def resume(self) -> None:
        await self._call("POST", "/resume")

    async def update(self, version: Version) -> dict[str, Any]:
        """Swaps in a version from the weight board or chain, between two steps, with running requests kept."""
        return await self._call("POST", "/update", {"version": str(version)})

    async def pin(self, version: Version) -> PinnedEngine:
        """Keeps the present weights, which must be `version`, beside those that come; a policy that samples them."""
        await self._call("POST", "/pin", {"version": str(version)})
        return PinnedEngine(self, version)

    async def running(self) -> dict[str, tuple[int, int]]:
        """Of each named request that is under way: tokens sampled so far, and told as parts."""
        return {name: (sampled, told) for name, (sampled, told) in (await self._call("GET", "/running")).items()}

    async def version(self) -> Version:
        return Version.parse((await self._call("GET", "/version"))["version"])

    async def health(self) -> dict[str, Any]:
        return await self._call("GET", "/health")

    async def facts(self) -> EngineFacts:
        """What this engine is and can do."""
        told = await self._call("GET", "/facts")
        return EngineFacts(
            "etude",
            Version.parse(told["version"]),
            bool(told["routed_experts"]),
            seeds=True,
            pins=True,
            keeps_cache=True,
        )

    async def stats(self) -> dict[str, Any]:
        return await self._call("GET", "/stats")

    async def close(self, seconds: float = 10.0) -> None:
        """Lets go of the connection, and ends the server if we started it."""
        if self._http is not None:
            await self._http.close()
        if self._frames is not None:
            self._frames.close()
        if self.server is not None:
            await self.server.close(seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, deadline: float | None = None
    ) -> dict[str, Any]:
        seconds = deadline if deadline is not None else self.deadline
        if (frames := self._caller()) is not None:
            request = Frame({"verb": path.removeprefix("/"), "message": body or {}})
            found = await self._ask(frames, request, path, seconds)
            return dict(found.header["message"])
        try:
            async with self._session().request(
                method, path, json=body, headers=self._headers, timeout=aiohttp.ClientTimeout(total=seconds)
            ) as response:
                answer = await response.json()
        except TimeoutError:
            raise EtudeError(f"the engine at {self.address} did not answer {path} within {seconds:g} s") from None
        # A server that dies while it answers leaves half of a JSON text.
        except (aiohttp.ClientError, json.JSONDecodeError) as broken:
            raise await self._lost(path, broken) from None
        if response.status != 200:
            said = answer.get("error", response.status)
            raise EtudeError(f"the engine refused {path}: {said['message'] if isinstance(said, dict) else said}")
        return dict(answer)

    async def _ask(
        self,
        frames: Caller,
        request: Frame,
        path: str,
        seconds: float,
        on_news: Callable[[Frame], None] | None = None,
    ) -> Frame:
        try:
            return await frames.call(request, deadline=seconds, on_news=on_news)
        except TimeoutError:
            raise EtudeError(f"the engine at {self.address} did not answer {path} within {seconds:g} s") from None
        except ConnectionLost as broken:
            raise await self._lost(path, broken) from None
        except EtudeError as refused:
            raise EtudeError(f"the engine refused {path}: {refused}") from None

    async def _lost(self, path: str, broken: Exception) -> ConnectionLost:
        # A sample that waits for the next server must not first wait for the end of this one.
        died = await self.server.last_words() if self.server is not None and not self.patience else None
        return ConnectionLost(died or f"the engine at {self.address} cannot be reached for {path}: {broken}")

    def _caller(self) -> Caller | None:
        """The connection for frames; None where the server takes none."""
        if self._frames is None and self.address.startswith(FILE):
            self._frames = Caller(self.address)
        if self._frames is None and self.address.startswith("unix:"):
            path = messages.frames_path(self.address.removeprefix("unix:"))
            if self.patience or Path(path).is_socket():
                self._frames = Caller(path)
        return self._frames

    def _session(self) -> aiohttp.ClientSession:
        """One for the client's life. No limit on connections: every waiting sample has its own."""
        if self._http is None:
            connector: aiohttp.BaseConnector
            if self.address.startswith("unix:"):
                path, close = self.address.removeprefix("unix:"), not self.keep_alive
                connector = aiohttp.UnixConnector(path, limit=0, force_close=close)
                self._http = aiohttp.ClientSession("http://engine", connector=connector)
            else:
                connector = aiohttp.TCPConnector(limit=0, force_close=not self.keep_alive)
                self._http = aiohttp.ClientSession(self.address, connector=connector)
        return self._http


@dataclass(frozen=True)
class PinnedEngine:
    """A `Policy`: the engine at one version, whatever it is swapped to meanwhile."""

    engine: EngineClient
    version: Version

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        return await self.engine.sample(context, sampling, version=self.version)


async def launch(
    model: Path,
    settings: EngineSettings,
    *,
    device: str = "cpu",
    threads: int = 1,
    board: Path | None = None,
    chain: str = "",
    version: Version = messages.FIRST,
    log: Path | None = None,
    deadline: float = 120.0,
    verb_deadline: float = 60.0,
    decode: Callable[[Sequence[int]], str] | None = None,
    socket: Path | None = None,
) -> EngineClient:
    """Starts an engine server on a local socket and returns its client, whose `close` ends it.

    The server also ends when this process ends, in whatever way. Its log goes to `log`, or into a folder that is
    removed with it. `socket` is where it listens, if that matters.
    """
    spec = messages.EngineSpec(model, settings, device, threads, board, version, chain, 0.9 * verb_deadline)
    arguments = [json.dumps(to_json(spec))]
    server = await start(
        "engine", "etude.serve.server", arguments, ready=messages.READY, log=log, deadline=deadline, socket=socket
    )
    return EngineClient(server.said, decode=decode, deadline=verb_deadline, server=server)

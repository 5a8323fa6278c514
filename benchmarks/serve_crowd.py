"""Many clients at once, each in a manner of its own, and a report of what they saw.

Owns the manners: streams, whole answers, slow and silent readers, cut connections, broken and large bodies, what is not
HTTP at all, strangers. Knows neither how long they come nor what the server may use meanwhile (`serve_soak.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from serve_questions import Question, Said, add_chunk, whole_said
from serve_tiny import NAME, Server

LARGE = 20 << 20  # bytes


@dataclass
class Report:
    counts: Counter[str] = field(default_factory=Counter)  # by manner
    statuses: Counter[int] = field(default_factory=Counter)
    compared: int = 0
    tokens: int = 0
    seeded: int = 0
    seeded_differences: int = 0
    problems: list[str] = field(default_factory=list)

    def wrong(self, what: str) -> None:
        if len(self.problems) < 20:
            self.problems.append(what)


class Crowd:
    def __init__(self, server: Server, asked: list[Question], known: list[Said], seed: int) -> None:
        self.server, self.asked, self.known = server, asked, known
        self.report = Report()
        self.seed = seed
        self.manners: list[tuple[Callable[..., Any], int]] = [
            (self.stream, 50),
            (self.whole, 15),
            (self.slow, 10),
            (self.cut, 12),
            (self.cut_whole, 3),
            (self.silent, 3),
            (self.broken, 6),
            (self.large, 2),
            (self.large_in_chunks, 1),
            (self.garbage, 2),
            (self.stranger, 2),
            (self.look, 2),
        ]

    async def run(self, clients: int, seconds: float, least: int = 0) -> None:
        """For so long, and until each client has asked at least so often."""
        end = time.monotonic() + seconds
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=180)
        async with aiohttp.ClientSession(self.server.address, connector=connector, timeout=timeout) as http:
            await asyncio.gather(
                *(self.client(http, random.Random(f"{self.seed} {i}"), end, least) for i in range(clients))
            )

    async def fill(self, clients: int) -> None:
        """As many large bodies at once as ever come."""
        async with aiohttp.ClientSession(self.server.address, connector=aiohttp.TCPConnector(limit=0)) as http:
            chance = random.Random(self.seed)
            await asyncio.gather(*(self.large_in_chunks(http, chance) for _ in range(min(clients, 32))))

    async def client(self, http: aiohttp.ClientSession, chance: random.Random, end: float, least: int) -> None:
        works, weights = zip(*self.manners, strict=True)
        done = 0
        while time.monotonic() < end or done < least:
            done += 1
            work = chance.choices(works, weights)[0]
            self.report.counts[work.__name__] += 1
            try:
                await work(http, chance)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self.report.wrong(f"{work.__name__}: {error!r}")

    def compare(self, number: int, said: Said) -> None:
        self.report.compared += 1
        self.report.tokens += sum(len(entry["ids"]) for entry in said.values())
        question = self.asked[number]
        if question.greedy:
            if said != self.known[number]:
                self.report.wrong(f"question {number}: {said} is not {self.known[number]}")
            return
        self.report.seeded += 1
        self.report.seeded_differences += said != self.known[number]

    async def stream(self, http: aiohttp.ClientSession, chance: random.Random, pause: float = 0.0) -> None:
        number = chance.randrange(len(self.asked))
        question = self.asked[number]
        body = question.body | {"stream": True, "stream_options": {"include_usage": True}}
        said: Said = {}
        async with http.post(question.path, json=body, headers=self.server.headers) as response:
            self.report.statuses[response.status] += 1
            if response.status == 429:
                await self.proper(response, 429)
                return
            last = None
            async for line in response.content:
                if pause:
                    await asyncio.sleep(pause)
                if line.startswith(b"data: {"):
                    last = json.loads(line[6:])
                    if "error" in last:
                        self.report.wrong(f"a stream ended with {last}")
                        return
                    add_chunk(said, last)
                elif line.startswith(b"data: [DONE]"):
                    break
            else:
                self.report.wrong(f"a stream of question {number} has no end")
                return
        if last is None or sum(len(entry["ids"]) for entry in said.values()) != last["usage"]["completion_tokens"]:
            self.report.wrong(f"question {number}: usage {last} does not fit the tokens")
        self.compare(number, said)

    async def slow(self, http: aiohttp.ClientSession, chance: random.Random) -> None:
        await self.stream(http, chance, pause=chance.uniform(0.002, 0.03))

    async def whole(self, http: aiohttp.ClientSession, chance: random.Random) -> None:
        number = chance.randrange(len(self.asked))
        question = self.asked[number]
        async with http.post(question.path, json=question.body, headers=self.server.headers) as response:
            self.report.statuses[response.status] += 1
            if response.status == 429:
                await self.proper(response, 429)
                return
            self.compare(number, whole_said(await response.json()))

    async def cut(self, http: aiohttp.ClientSession, chance: random.Random) -> None:
        """Leaves in the middle of a stream."""
        question = chance.choice(self.asked)
        body = question.body | {"stream": True, "max_tokens": 150}
        async with http.post(question.path, json=body, headers=self.server.headers) as response:
            for _ in range(chance.randint(0, 12)):
                await response.content.readline()
            response.close()

    async def cut_whole(self, http: aiohttp.ClientSession, chance: random.Random) -> None:
        """Leaves before there is an answer, or in the middle of its own question."""
        question = chance.choice(self.asked)
        data = json.dumps(question.body | {"max_tokens": 150}).encode()
        writer = await self.connect()
        writer.write(self.head(question.path, len(data)) + data[: chance.choice((len(data), len(data) // 2))])
        await writer.drain()
        await asyncio.sleep(chance.uniform(0, 0.2))
        writer.transport.abort()

    async def silent(self, http: aiohttp.ClientSession, chance: random.Random) -> None:
        """Asks for a stream and reads nothing of it for a while."""
        body = {
            "model": NAME,
            "prompt": "x",
            "max_tokens": 200,
            "stream": True,
            "ignore_eos": True,
            "logprobs": 20,
            "n": 8,
        }
        data = json.dumps(body).encode()
        writer = await self.connect(small=True)
        writer.write(self.head("/v1/completions", len(data)) + data)
        await asyncio.sleep(chance.uniform(1, 3))
        writer.transport.abort()

    async def broken(self, http: aiohttp.ClientSession, chance: random.Random) -> None:
        good = json.dumps(chance.choice(self.asked).body).encode()
        data = chance.choice(
            (
                good[: chance.randrange(len(good))],
                b"",
                b"[" * 100_000,
                b'{"model": NaN}',
                b'{"model": "tiny", "prompt": "\\ud800"}',
                b"\xff\xfe" + good,
                b"null",
                good[:-1] + b', "logit_bias": {"5": 1}}',
                good[:-1] + b', "temperature": "hot"}',
                good[:-1] + b', "no_such_field": 1}',
                good[:-1] + b', "n": 1e9}',
            )
        )
        path = chance.choice(("/v1/completions", "/v1/chat/completions"))
        headers = self.server.headers | {"Content-Type": "application/json"}
        async with http.post(path, data=data, headers=headers) as response:
            await self.proper(response, 400)

    async def large(self, http: aiohttp.ClientSession, chance: random.Random) -> None:
        headers = self.server.headers | {"Content-Type": "application/json"}
        data = b'{"model": "tiny", "prompt": "' + b"x" * LARGE
        async with http.post("/v1/completions", data=data, headers=headers) as response:
            await self.proper(response, 413)

    async def large_in_chunks(self, http: aiohttp.ClientSession, chance: random.Random) -> None:
        async def pieces() -> Any:
            for _ in range(LARGE >> 16):
                yield b" " * (1 << 16)

        headers = self.server.headers | {"Content-Type": "application/json"}
        with contextlib.suppress(aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):  # it may stop listening first
            async with http.post("/v1/completions", data=pieces(), headers=headers) as response:
                await self.proper(response, 413, 429)

    async def garbage(self, http: aiohttp.ClientSession, chance: random.Random) -> None:
        """What is not HTTP at all: any answer but silence, and no harm."""
        writer = await self.connect()
        writer.write(chance.choice((b"\x16\x03\x01" + secrets.token_bytes(200), b"GET / HTTP/9\r\n\r\n", b"\r\n" * 50)))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async def stranger(self, http: aiohttp.ClientSession, chance: random.Random) -> None:
        question = chance.choice(self.asked)
        wrong = {"Authorization": "Bearer " + "x" * 20} if chance.random() < 0.5 else {}
        async with http.post(question.path, json=question.body, headers=wrong) as response:
            await self.proper(response, 401)

    async def look(self, http: aiohttp.ClientSession, chance: random.Random) -> None:
        path, status = chance.choice((("/metrics", 200), ("/health", 200), ("/v1/models", 200), ("/nowhere", 404)))
        async with http.get(path, headers=self.server.headers) as response:
            if status == 404:
                await self.proper(response, 404)
            elif response.status != 200:
                self.report.wrong(f"{path} answered {response.status}")

    async def proper(self, response: aiohttp.ClientResponse, *statuses: int) -> None:
        self.report.statuses[response.status] += 1
        try:
            error = json.loads(await response.read())["error"]
            fine = set(error) == {"message", "type", "param", "code"} and isinstance(error["message"], str)
        except (ValueError, KeyError, TypeError):
            fine = False
        if not fine or response.status not in statuses:
            self.report.wrong(f"status {response.status} where {statuses} belongs: {await response.text()!r}")

    async def connect(self, small: bool = False) -> asyncio.StreamWriter:
        host, port = self.server.address.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024 if small else 1 << 16)
        return writer

    def head(self, path: str, length: int) -> bytes:
        lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in self.server.headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

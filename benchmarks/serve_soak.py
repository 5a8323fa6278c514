"""`etude serve` under a crowd: many streams at once, slow readers, cut connections, huge and broken bodies.

    python benchmarks/serve_soak.py [--minutes 10] [--clients 200] [--seed 0]

A tiny model is trained on the spot (some seconds) and served by a process of its own, with an API key. Questions are
first asked one by one; then all clients ask at once, each in a manner of its own, for the given time. Every answer must
be the one that the quiet server gave to the same question and seed; every error must be a JSON object with its reason
and the status that fits; in the end the server must answer as before, hold no more memory and files than before, and
stop when told to. Prints one JSON object as its last line and exits 1 if anything did not hold.

Rounding may send a sampled answer another way when the batch around it differs (a uniform number within about 1e-8 of
a boundary): those are counted apart, and more than one in a thousand is a failure. Greedy answers must all be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from etude.policy import Assistant, Call, Message, User

READY = "etude engine ready at"
NAME = "tiny"
TEXT = "Hello, wörld! € 🎉 done\nI think of naïve things: read a.py, echo hello; say hello, call the tool. café <b> x"
EXAMPLES: list[tuple[list[Message], Assistant]] = [
    ([User("say hello")], Assistant("short: naïve €", "Hello, wörld! € 🎉 done")),
    (
        [User("call the tool")],
        Assistant(
            "I read.", "Reading.", (Call("read", {"path": "a.py", "line": "3"}), Call("bash", {"command": "echo"}))
        ),
    ),
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Read a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
            },
        },
    },
    {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}},
]
SETTINGS = ("engine.max_running=32", "engine.max_waiting=512", "engine.cache_tokens=16384", "engine.max_length=256")
STREAM_SETTINGS = ("engine.stall_seconds=5", "engine.drain_seconds=10", "engine.request_seconds=120", "run.threads=1")
LARGE = 20 << 20  # bytes
GROWTH = 0.10  # of the server's memory, or
GROWTH_MB = 24  # that many
SEEDED = 1e-3  # sampled answers that rounding may send another way


# The model and its server


def train_tiny(
    folder: Path, examples: Sequence[tuple[Sequence[Message], Assistant]] = EXAMPLES, text: str = TEXT
) -> None:
    """A model that answers the examples by heart and anything else with whatever comes."""
    import torch

    from etude.model.attention import PackedAttend
    from etude.model.checkpoint import save_model
    from etude.model.config import ModelConfig
    from etude.model.decoder import Decoder
    from etude.tokens.render import render
    from etude.tokens.tokenizer import Tokenizer

    torch.set_num_threads(1)
    tokenizer = Tokenizer.train([text] * 3, 320)
    rows = []
    for messages, turn in examples:
        start = len(render(messages, tokenizer, open_turn=True).ids)
        rows.append((render([*messages, turn], tokenizer, open_turn=False).ids, start))
    lengths = [len(ids) for ids, _ in rows]
    tokens_T = torch.tensor([token for ids, _ in rows for token in ids])
    positions_T = torch.cat([torch.arange(length) for length in lengths])
    starts = [sum(lengths[:i]) for i in range(len(rows))]
    learnt = torch.cat(
        [torch.arange(at + first, at + size) for at, (_, first), size in zip(starts, rows, lengths, strict=True)]
    )
    decoder = Decoder(ModelConfig(tokenizer.vocab_size, 48, 96, 2, 4, 2, 12, max_position_embeddings=4096), 0)
    optimiser = torch.optim.AdamW(decoder.parameters(), lr=5e-3)
    for _ in range(400):
        logits = decoder.logits(decoder(tokens_T, positions_T, PackedAttend(lengths)))
        loss = torch.nn.functional.cross_entropy(logits[learnt - 1], tokens_T[learnt])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss.item() < 0.01:
            break
    save_model(folder, decoder)
    tokenizer.save(folder)


@dataclass
class Server:
    process: subprocess.Popen[str]
    address: str
    log: Path
    key: str | None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@contextlib.contextmanager
def served(model: Path, log: Path, *options: str, key: str | None = None) -> Iterator[Server]:
    """`etude serve` as a user starts it, on a free port; ended with SIGTERM if it still runs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"ETUDE_API_KEY": key} if key else {})
    command = [sys.executable, "-m", "etude.cli", "serve", str(model), "--port", "0", "--name", NAME, *options]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(READY):
            raise RuntimeError(f"the server said {line!r}; its log: {log.read_text()[-2000:]}")
        yield Server(process, line.removeprefix(READY).strip(), log, key)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


# Questions


@dataclass(frozen=True)
class Question:
    path: str
    body: dict[str, Any]

    @property
    def greedy(self) -> bool:
        return self.body["temperature"] == 0


def questions(seed: int, count: int) -> list[Question]:
    chance = random.Random(seed)
    words = TEXT.split()
    made = []
    for number in range(count):
        text = " ".join(chance.choices(words, k=chance.randint(1, 20)))
        common: dict[str, Any] = {
            "model": NAME,
            "seed": number,
            "temperature": chance.choice((0, 0, 0.7, 1)),
            "max_tokens": chance.randint(5, 60),
            "return_token_ids": True,
            "logprobs": True,
        }
        if chance.random() < 0.3:
            common["stop"] = chance.choice((["h"], ["ll", "wör"], ["€ 🎉"], ["zzz", " "]))
        if chance.random() < 0.2:
            common["n"] = 2
        if chance.random() < 0.5:
            common["logprobs"] = 2
            prompt: Any = (
                text if chance.random() < 0.5 else [chance.randrange(300) for _ in range(chance.randint(1, 90))]
            )
            made.append(Question("/v1/completions", common | {"prompt": prompt, "ignore_eos": chance.random() < 0.5}))
        else:
            said = chance.choice((text, "say hello", "call the tool"))
            body = common | {"messages": [{"role": "user", "content": said}], "top_logprobs": 2}
            made.append(Question("/v1/chat/completions", body | ({"tools": TOOLS} if chance.random() < 0.6 else {})))
    return made


Said = dict[int, dict[str, Any]]  # by choice: what must be equal


def whole_said(body: dict[str, Any]) -> Said:
    said: Said = {}
    for choice in body["choices"]:
        message = choice.get("message", choice)
        said[choice["index"]] = {
            "text": message.get("content", message.get("text")) or "",
            "thinking": message.get("reasoning_content") or "",
            "calls": [
                (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])
            ],
            "ids": choice["token_ids"],
            "finish": choice["finish_reason"],
        }
    return said


def add_chunk(said: Said, chunk: dict[str, Any]) -> None:
    for choice in chunk["choices"]:
        empty = {"text": "", "thinking": "", "calls": [], "ids": [], "finish": None}
        entry = said.setdefault(choice["index"], empty)
        delta = choice.get("delta", choice)
        entry["text"] += delta.get("content", delta.get("text")) or ""
        entry["thinking"] += delta.get("reasoning_content") or ""
        entry["ids"] += choice.get("token_ids") or []
        entry["finish"] = choice["finish_reason"] or entry["finish"]
        for call in delta.get("tool_calls", []):
            if "id" in call:
                entry["calls"].append((call["function"]["name"], ""))
            name, arguments = entry["calls"][call["index"]]
            entry["calls"][call["index"]] = (name, arguments + call["function"].get("arguments", ""))


# Clients


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

    async def run(self, clients: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=180)
        async with aiohttp.ClientSession(self.server.address, connector=connector, timeout=timeout) as http:
            await asyncio.gather(*(self.client(http, random.Random(f"{self.seed} {i}"), end) for i in range(clients)))

    async def fill(self, clients: int) -> None:
        """As many large bodies at once as ever come."""
        async with aiohttp.ClientSession(self.server.address, connector=aiohttp.TCPConnector(limit=0)) as http:
            chance = random.Random(self.seed)
            await asyncio.gather(*(self.large_in_chunks(http, chance) for _ in range(min(clients, 32))))

    async def client(self, http: aiohttp.ClientSession, chance: random.Random, end: float) -> None:
        works, weights = zip(*self.manners, strict=True)
        while time.monotonic() < end:
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


async def ask_quietly(server: Server, asked: list[Question]) -> list[Said]:
    async with aiohttp.ClientSession(server.address, headers=server.headers) as http:
        known = []
        for question in asked:
            async with http.post(question.path, json=question.body) as response:
                body = await response.json()
                if response.status != 200:
                    raise RuntimeError(f"{question} got {body}")
                known.append(whole_said(body))
        return known


async def settled(server: Server) -> dict[str, float]:
    """Memory and files once nothing runs any more: the engine empty, no connection open."""
    for _ in range(200):
        async with (
            aiohttp.ClientSession(server.address, headers={**server.headers, "Connection": "close"}) as http,
            http.get("/metrics") as response,
        ):
            lines = (await response.text()).splitlines()
        figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        busy = [
            figures[f"etude_{name}"] for name in ("engine_running", "engine_waiting", "engine_blocks_held", "streams")
        ]
        if busy == ["0"] * 4:
            break
        await asyncio.sleep(0.05)
    else:
        raise RuntimeError(f"requests are left behind: running, waiting, blocks, streams = {busy}")
    await asyncio.sleep(0.2)
    return {"memory_mb": round(server.memory_mb(), 1), "files": server.files()}


def soak(seconds: float, clients: int, seed: int, folder: Path, count: int = 40) -> dict[str, Any]:
    """All of it; what did not hold stands under `problems`."""
    train_tiny(folder / "model")
    with served(
        folder / "model", folder / "server.log", *SETTINGS, *STREAM_SETTINGS, key=secrets.token_hex(16)
    ) as server:
        asked = questions(seed, count)
        known = asyncio.run(ask_quietly(server, asked))
        crowd = Crowd(server, asked, known, seed)
        # memory grows until every client and every buffer has been there once; from then on it must be flat
        asyncio.run(crowd.fill(clients))
        asyncio.run(crowd.run(clients, min(60.0, seconds / 3)))
        readings = [asyncio.run(settled(server))]
        for part in range(3):
            crowd.seed = seed + 1 + part
            asyncio.run(crowd.run(clients, max(seconds - min(60.0, seconds / 3), 1.0) / 3))
            readings.append(asyncio.run(settled(server)))
        report = crowd.report
        if asyncio.run(ask_quietly(server, asked)) != known:
            report.wrong("the quiet server answers otherwise than before")
        before, after = readings[0], readings[-1]
        if after["memory_mb"] > max(before["memory_mb"] * (1 + GROWTH), before["memory_mb"] + GROWTH_MB):
            report.wrong(f"memory grew from {before['memory_mb']} to {after['memory_mb']} MB")
        if after["files"] > before["files"]:
            report.wrong(f"open files grew from {before['files']} to {after['files']}")
        if report.seeded_differences > max(1, report.seeded * SEEDED):
            report.wrong(f"{report.seeded_differences} of {report.seeded} sampled answers differ")
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(timeout=30)
        if code:
            report.wrong(f"told to stop, the server ended with code {code}")
        log = server.log.read_text()
        if "Traceback" in log:
            report.wrong("the server's log holds an exception: " + log[-1500:])
    return {
        "ok": not report.problems,
        "seconds": seconds,
        "clients": clients,
        "requests": sum(report.counts.values()),
        "compared": report.compared,
        "tokens_compared": report.tokens,
        "seeded": report.seeded,
        "seeded_differences": report.seeded_differences,
        "by_manner": dict(report.counts.most_common()),
        "by_status": {str(status): count for status, count in sorted(report.statuses.items())},
        "memory_and_files": readings,
        "problems": report.problems,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = soak(options.minutes * 60, options.clients, options.seed, Path(folder))
    print(json.dumps(found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())

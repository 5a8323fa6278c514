"""`etude serve` under a crowd: many streams at once, slow readers, cut connections, huge and broken bodies.

    python benchmarks/serve_soak.py [--minutes 10] [--clients 200] [--seed 0]

A tiny model is trained on the spot (some seconds) and served by a process of its own, with an API key. Questions are
first asked one by one; then all clients ask at once, each in a manner of its own, for the given time, with schemathesis
(`serve_fuzz.py`) beside them. Every answer must be the one that the quiet server gave to the same question and seed;
every error must be a JSON object with its reason and the status that fits; schemathesis must find nothing that the
OpenAPI schema does not promise; in the end the server must answer as before, hold no more memory and files than before,
and stop when told to. Prints one JSON object as its last line and exits 1 if anything did not hold.

Rounding may send a sampled answer another way when the batch around it differs (a uniform number within about 1e-8 of
a boundary): those are counted apart, and more than one in a thousand is a failure. Greedy answers must all be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
from serve_crowd import Crowd
from serve_questions import Question, Said, questions, whole_said
from serve_tiny import Server, served, train_tiny

SETTINGS = ("engine.max_running=32", "engine.max_waiting=512", "engine.cache_tokens=16384", "engine.max_length=256")
STREAM_SETTINGS = ("engine.stall_seconds=5", "engine.drain_seconds=10", "engine.request_seconds=120", "run.threads=1")
GROWTH = 0.10  # of the server's memory, or
GROWTH_MB = 24  # that many
SEEDED = 1e-3  # sampled answers that rounding may send another way


@contextlib.contextmanager
def fuzzing(server: Server, seconds: float, found: dict[str, Any]) -> Iterator[None]:
    """schemathesis in a process of its own, meanwhile; what it found is added to `found`."""
    script = str(Path(__file__).parent / "serve_fuzz.py")
    environment = {**os.environ, "ETUDE_API_KEY": server.key or ""}
    child = subprocess.Popen(
        [sys.executable, script, server.address, "--seconds", str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        yield
        output = child.communicate(timeout=180)[0]
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    try:
        result = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        result = {"cases": 0, "problems": [f"schemathesis ended with code {child.returncode}: {output[-800:]}"]}
    found["cases"] = found.get("cases", 0) + result["cases"]
    found["problems"] = found.get("problems", []) + result["problems"]


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


def soak(
    seconds: float,
    clients: int,
    seed: int,
    folder: Path,
    count: int = 40,
    model: Path | None = None,
    schema: bool = True,
    least: int = 0,
) -> dict[str, Any]:
    """All of it; what did not hold stands under `problems`. `model` is one that `train_tiny` has made; each
    client asks at least `least` times in each of the four parts, however slow the machine is."""
    if model is None:
        model = folder / "model"
        train_tiny(model)
    with served(model, folder / "server.log", *SETTINGS, *STREAM_SETTINGS, key=secrets.token_hex(16)) as server:
        asked = questions(seed, count)
        known = asyncio.run(ask_quietly(server, asked))
        crowd = Crowd(server, asked, known, seed)
        # memory grows until every client and every buffer has been there once; from then on it must be flat
        asyncio.run(crowd.fill(clients))
        readings, report = [], crowd.report
        fuzzed: dict[str, Any] = {}
        first = min(60.0, seconds / 3)
        for part, length in enumerate([first] + [(seconds - first) / 3] * 3):
            crowd.seed = seed + part
            with fuzzing(server, length * 0.9, fuzzed) if schema else contextlib.nullcontext():
                asyncio.run(crowd.run(clients, length, least))
            readings.append(asyncio.run(settled(server)))
        report.problems += fuzzed.get("problems", [])
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
        "schema_cases": fuzzed.get("cases", 0),
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

"""Refusals, limits, the key and the end of the server: every error is JSON with one sentence and a fitting status."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Context, Sampling
from etude.core.settings import EngineSettings
from etude.policies.engine_client import EngineClient
from etude.serve.openai.api_key import read_key
from etude.serve.openai.body import Bodies
from etude.serve.openai.errors import ApiError
from etude.serve.server import ServeAccess, serve

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "say hello"}]}
TEXT = {"model": "tiny", "prompt": "say"}
LONG = {"model": "tiny", "prompt": "x", "max_tokens": 1500, "ignore_eos": True, "temperature": 0}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 180))


async def post(server: Any, path: str, data: Any, headers: dict[str, str] | None = None) -> tuple[int, Any, Any]:
    """Status, body and headers of the answer."""
    sent = {"Content-Type": "application/json"} | server.headers | (headers or {})
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    async with aiohttp.ClientSession(server.address) as http, http.post(path, data=data, headers=sent) as got:
        return got.status, await got.json(), got.headers


def refused(answer: tuple[int, Any, Any]) -> dict[str, Any]:
    error = answer[1]["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


CASES: list[tuple[str, Any, int, str | None, str]] = [
    (CHAT, b"{", 400, None, "not JSON"),
    (CHAT, b"[" * 100_000, 400, None, "not JSON"),
    (CHAT, b"\xff", 400, None, "not JSON"),
    (CHAT, b'{"model": NaN}', 400, None, "NaN is no number"),
    (CHAT, b'{"model": "tiny", "messages": "\\ud800"}', 400, None, "half of a surrogate pair"),
    (CHAT, b"null", 400, None, "must be an object"),
    (CHAT, {"messages": ASK["messages"]}, 400, "model", "is missing"),
    (CHAT, ASK | {"model": "gpt-5"}, 404, "model", "this server has 'tiny'"),
    (CHAT, ASK | {"messages": []}, 400, "messages", "must not be empty"),
    (CHAT, ASK | {"messages": [{"role": "cat", "content": "x"}]}, 400, "messages[0].role", "'cat'"),
    (CHAT, ASK | {"messages": [{"role": "user"}]}, 400, "messages[0].content", "is missing"),
    (
        CHAT,
        ASK | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        "messages[0].content[0].type",
        "'image_url'; it must be one of: 'text'",
    ),
    (
        CHAT,
        ASK | {"messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]},
        400,
        "messages[0].tool_call_id",
        "answers no call",
    ),
    *(
        (
            CHAT,
            ASK
            | {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "x", "arguments": text}}]}
                ]
            },
            400,
            "messages[0].tool_calls[0].function.arguments",
            "JSON object",
        )
        for text in ("1", '{"x": "\\udc80"}', '{"\\ud800": 1}')
    ),
    (CHAT, ASK | {"temperature": "hot"}, 400, "temperature", "must be a number or null, not 'hot'"),
    (CHAT, ASK | {"temperature": 3}, 400, "temperature", "the most is 2"),
    (CHAT, ASK | {"temperature": True}, 400, "temperature", "not true"),
    (CHAT, ASK | {"top_p": -0.5}, 400, "top_p", "the least is 0"),
    (CHAT, ASK | {"n": 0}, 400, "n", "the least is 1"),
    (CHAT, ASK | {"n": 33}, 400, "n", "the most is 32"),
    (CHAT, ASK | {"max_tokens": 0}, 400, "max_tokens", "the least is 1"),
    (CHAT, ASK | {"top_logprobs": 21, "logprobs": True}, 400, "top_logprobs", "the most is 20"),
    (CHAT, ASK | {"stop": ["a"] * 65}, 400, "stop", "the most is 64"),
    (CHAT, ASK | {"stop": ""}, 400, "stop", "must not be empty"),
    (CHAT, ASK | {"stream": "yes"}, 400, "stream", "true or false"),
    (CHAT, ASK | {"no_such_field": 1}, 400, "no_such_field", "not known here"),
    (CHAT, ASK | {"response_format": {"type": "xml"}}, 400, "response_format.type", "'xml'; it must be one of"),
    (
        CHAT,
        ASK | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "cat"}}}},
        400,
        "response_format",
        "the schema cannot be followed",
    ),
    (CHAT, ASK | {"logit_bias": {"5": 101}}, 400, "logit_bias", "numbers from -100 to 100"),
    (CHAT, ASK | {"logit_bias": {"x": 1}}, 400, "logit_bias", "token ids"),
    (CHAT, ASK | {"logit_bias": {"99999": 1}}, 400, "logit_bias", "token ids below"),
    (CHAT, ASK | {"audio": {"voice": "x"}}, 400, "audio", "text only"),
    (CHAT, ASK | {"frequency_penalty": 2.5}, 400, "frequency_penalty", "the most is 2"),
    (CHAT, ASK | {"reasoning_effort": "huge"}, 400, "reasoning_effort", "'huge'; it must be one of"),
    (CHAT, ASK | {"functions": []}, 400, "functions", "'tools'"),
    (CHAT, ASK | {"tool_choice": "required"}, 400, "tool_choice", "there are no 'tools'"),
    (
        CHAT,
        ASK | {"tool_choice": {"type": "function", "function": {"name": "x"}}},
        400,
        "tool_choice",
        "there are no 'tools'",
    ),
    (
        CHAT,
        ASK | {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        400,
        "tools[0].function.name",
        "match",
    ),
    (
        CHAT,
        ASK | {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"properties": {"x": 5}}}}]},
        400,
        "tools[0].function.parameters.properties.x",
        "must be an object",
    ),
    (CHAT, ASK | {"tools": [{"type": "function", "function": {"name": "a"}}] * 2}, 400, "tools", "two functions"),
    (
        CHAT,
        ASK | {"messages": [{"role": "user", "content": "word " * 200}]},
        400,
        None,
        "maximum context length is 128 tokens",
    ),
    (COMPLETIONS, TEXT | {"prompt": "x" * 900_000}, 400, None, "900000 characters"),
    (CHAT, ASK | {"messages": [{"role": "user", "content": "x" * 900_000}]}, 400, None, "900000 characters"),
    (COMPLETIONS, TEXT | {"prompt": ""}, 400, "prompt", "must not be empty"),
    (COMPLETIONS, TEXT | {"prompt": []}, 400, "prompt", "must be text, token ids"),
    (COMPLETIONS, TEXT | {"prompt": [1, "a"]}, 400, "prompt", "must be text, token ids"),
    (COMPLETIONS, TEXT | {"prompt": [10**6]}, 400, "prompt", "token ids below"),
    (COMPLETIONS, TEXT | {"prompt": ["a"] * 200, "n": 2}, 400, "n", "256 in all"),
    (COMPLETIONS, TEXT | {"max_tokens": 0}, 400, "max_tokens", "only with 'echo'"),
    ("/tokenize", {"model": "tiny"}, 400, "prompt", "either a 'prompt' or 'messages'"),
    ("/detokenize", {"tokens": [10**6]}, 400, "tokens", "token ids from 0 to"),
    (COMPLETIONS, TEXT | {"suffix": "x"}, 400, "suffix", "only continued"),
    (COMPLETIONS, TEXT | {"best_of": 3}, 400, "best_of", "may be 1 only"),
    (COMPLETIONS, TEXT | {"prompt": "x" * 1_000_001}, 413, None, "engine.body_bytes = 1000000"),
    ("/v1/nowhere", {}, 404, None, "nothing at /v1/nowhere"),
    ("/v1/models", {}, 405, None, "Method Not Allowed"),
]


@pytest.mark.parametrize(("path", "data", "status", "param", "message"), CASES)
def test_what_cannot_be_done_is_refused_with_one_sentence(
    served: Any, path: str, data: Any, status: int, param: str | None, message: str
) -> None:
    answer = run(post(served, path, data))
    error = refused(answer)
    assert (answer[0], error["param"]) == (status, param), error
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


def test_an_error_before_a_stream_begins_is_no_stream(served: Any) -> None:
    answer = run(post(served, COMPLETIONS, TEXT | {"prompt": "word " * 200, "stream": True}))
    assert answer[0] == 400
    assert refused(answer)["code"] == "context_length_exceeded"


def test_other_content_types_are_refused(served: Any) -> None:
    """A browser sends these across origins without asking first."""
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = run(post(served, COMPLETIONS, TEXT, {"Content-Type": kind}))
        assert answer[0] == 415
        assert "application/json" in refused(answer)["message"]


def test_nothing_but_health_is_told_without_the_key(served: Any) -> None:
    async def look(method: str, path: str, headers: dict[str, str]) -> tuple[int, Any]:
        async with aiohttp.ClientSession(served.address) as http, http.request(method, path, headers=headers) as got:
            return got.status, await got.json()

    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {served.key}"}):
        for method, path in (
            ("POST", CHAT),
            ("POST", COMPLETIONS),
            ("GET", "/v1/models"),
            ("GET", "/metrics"),
            ("GET", "/openapi.json"),
            ("GET", "/nowhere"),
            ("POST", "/generate"),
            ("POST", "/score"),
            ("POST", "/update"),
            ("POST", "/pause"),
            ("GET", "/stats"),
        ):
            status, body = run(look(method, path, headers))
            assert status == 401, (method, path)
            assert body["error"]["code"] == "invalid_api_key"
            assert served.key not in json.dumps(body)
        assert run(look("GET", "/health", headers))[0] == 200
    assert served.key not in served.log.read_text()


def test_the_engines_own_routes_work_beside_the_others_with_the_key(served: Any) -> None:
    async def ask() -> Any:
        async with EngineClient(served.address, key=served.key) as client:
            sample = await client.sample(Context(ids=(30, 31)), Sampling(max_tokens=4, temperature=0.0))
            assert (await client.stats())["cache_bytes"] > 0
            with pytest.raises(EtudeError, match="outside the vocabulary"):
                await client.sample(Context(ids=(10**6,)), Sampling(max_tokens=4))
            return sample.ids

    body = TEXT | {"prompt": [30, 31], "max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    assert list(run(ask())) == run(post(served, COMPLETIONS, body))[1]["choices"][0]["token_ids"]


def test_metrics_count_what_happened(served: Any) -> None:
    async def look() -> dict[str, float]:
        async with aiohttp.ClientSession(served.address, headers=served.headers) as http, http.get("/metrics") as got:
            assert got.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            lines = (await got.text()).splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    before = run(look())
    run(post(served, COMPLETIONS, TEXT | {"max_tokens": 5, "ignore_eos": True}))
    run(post(served, COMPLETIONS, b"{"))
    after = run(look())
    gained = {name: after[name] - before.get(name, 0) for name in after}
    assert gained['etude_requests_total{route="/v1/completions",status="200"}'] == 1
    assert gained['etude_requests_total{route="/v1/completions",status="400"}'] == 1
    assert gained["etude_answer_tokens_total"] == 5
    assert gained["etude_engine_sampled_tokens_total"] == 5
    assert gained["etude_request_seconds_count"] == 1
    assert after["etude_engine_running"] == 0


# A server with a paused engine, tight limits and an end of its own


@pytest.fixture
def small(tiny_module: ModuleType, tiny_model: Path, tmp_path: Path) -> Any:
    limits = ("engine.max_running=2", "engine.max_waiting=3", "engine.max_length=2000", "engine.request_seconds=5")
    more = ("engine.stall_seconds=1", "run.threads=1", "--engine-routes")
    with tiny_module.served(tiny_model, tmp_path / "log", *limits, *more, key="another-key") as server:
        yield server


@pytest.fixture
def patient(tiny_module: ModuleType, tiny_model: Path, tmp_path: Path) -> Any:
    with tiny_module.served(tiny_model, tmp_path / "log", "engine.drain_seconds=30", "run.threads=1") as server:
        yield server


async def until_engine(server: Any, name: str, value: int) -> None:
    async with EngineClient(server.address, key=server.key) as client:
        while (await client.stats())[name] != value:
            await asyncio.sleep(0)


def test_a_full_queue_a_slow_engine_and_a_silent_reader_have_their_ends(small: Any) -> None:
    async def scenario() -> None:
        async with EngineClient(small.address, key=small.key) as client:
            await client.pause()
            queued = [asyncio.create_task(post(small, COMPLETIONS, TEXT)) for _ in range(3)]
            await until_engine(small, "waiting", 3)
            answer = await post(small, COMPLETIONS, TEXT | {"stream": True})
            assert (answer[0], refused(answer)["code"], answer[2]["Retry-After"]) == (429, "queue_full", "1")
            for late in await asyncio.gather(*queued):
                assert (late[0], refused(late)["code"]) == (504, "timeout")
            await client.resume()
            await until_engine(small, "waiting", 0)
            # nobody reads: what is sampled waits in the server until the reader is dropped
            host, port = small.address.removeprefix("http://").split(":")
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect((host, int(port)))
            body = json.dumps(LONG | {"stream": True, "logprobs": 20, "n": 2}).encode()
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {small.key}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            reader.sendall(head.encode() + body)
            await until_engine(small, "running", 2)
            await until_engine(small, "running", 0)
            reader.close()
            # a client that leaves ends its request
            before = (await client.stats())["aborted"]
            task = asyncio.create_task(post(small, COMPLETIONS, LONG))
            await until_engine(small, "running", 1)
            task.cancel()
            await until_engine(small, "running", 0)
            assert (await client.stats())["aborted"] == before + 1
            assert (await client.stats())["blocks_held"] == 0

    run(scenario())


def test_told_to_stop_it_ends_streams_properly_and_takes_nothing_new(patient: Any) -> None:
    async def scenario() -> bytes:
        body = LONG | {"stream": True, "max_tokens": 600}
        async with aiohttp.ClientSession(patient.address) as http, http.post(COMPLETIONS, json=body) as stream:
            first = await stream.content.readline()
            patient.process.send_signal(signal.SIGTERM)
            status = 200
            while status == 200:  # until the signal has been heard
                async with http.get("/health") as health:
                    status = health.status
            assert status == 503
            answer = await post(patient, COMPLETIONS, TEXT)
            assert (answer[0], refused(answer)["code"]) == (503, "shutting_down")
            return first + await stream.read()

    events = run(scenario())
    assert events.rstrip().endswith(b"data: [DONE]")
    assert patient.process.wait(timeout=60) == 0


def test_the_engines_routes_need_a_key_and_a_bad_key_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EtudeError, match="set an API key"):
        serve(tmp_path, EngineSettings(), access=ServeAccess("x", None, engine_routes=True))
    monkeypatch.delenv("ETUDE_API_KEY", raising=False)
    assert read_key(None) is None
    (tmp_path / "key").write_text("  a-long-enough-key\n")
    assert read_key(tmp_path / "key") == "a-long-enough-key"
    monkeypatch.setenv("ETUDE_API_KEY", "another-long-key")
    assert read_key(None) == "another-long-key"
    for content in ("short", "with a space in it", ""):
        (tmp_path / "key").write_text(content)
        with pytest.raises(EtudeError, match="at least 8 printable") as caught:
            read_key(tmp_path / "key")
        assert not content or content not in str(caught.value)
    with pytest.raises(EtudeError, match="cannot be read"):
        read_key(tmp_path / "none")


@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "gzip"}])  # packed, 16 MiB travel as 16 KiB
def test_many_large_bodies_at_once_are_refused_and_not_held(headers: dict[str, str]) -> None:
    class Arriving:
        content_type, content_length = "application/json", 16 << (10 if headers else 20)

        def __init__(self) -> None:
            self.headers = headers

        async def read(self) -> bytes:
            await asyncio.sleep(0)
            return b"{}"

    async def scenario() -> list[Any]:
        bodies = Bodies(16 << 20, 60)
        found = await asyncio.gather(*(bodies.read(Arriving(), dict) for _ in range(20)), return_exceptions=True)  # type: ignore[arg-type]
        assert bodies.arriving == 0
        return found

    begin = time.monotonic()
    found = run(scenario())
    assert found.count({}) == 4
    assert [error.status for error in found if isinstance(error, ApiError)] == [429] * 16
    assert time.monotonic() - begin < 30

"""Raw sockets against both servers: what is not HTTP gets JSON, and nobody is waited for without end."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from etude.core.settings import EngineSettings
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.policies.engine_client import EngineClient, launch

NOT_HTTP = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)) + b"\r\n\r\n",  # a TLS handshake
    b"GET / HTTP/9\r\n\r\n",
    b"hello?\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /health HTTP/1.1\r\nno colon\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
]
EXPECTS = b"POST /generate HTTP/1.1\r\nHost: x\r\nExpect: wonders\r\nContent-Length: 0\r\n\r\n"
UNFINISHED = [b"", b"GET /health HTT", b"GET /health HTTP/1.1\r\nHost: x\r\nX: "]
SECONDS = 120.0


def connect(address: str) -> socket.socket:
    if address.startswith("unix:"):
        raw = socket.socket(socket.AF_UNIX)
        raw.settimeout(SECONDS)
        raw.connect(address.removeprefix("unix:"))
        return raw
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


def all_of(raw: socket.socket) -> bytes:
    """All that comes until the server closes; a wait without end is an error of the socket."""
    found = b""
    try:
        while data := raw.recv(1 << 16):
            found += data
    except ConnectionResetError:
        pass  # it closed before it had read all that was sent
    return found


def ask(address: str, data: bytes) -> tuple[int, Any]:
    """Status and JSON body of the only answer on a connection that the server closes."""
    with connect(address) as raw:
        raw.sendall(data)
        head, _, body = all_of(raw).partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), (data[:60], head, body)
    return int(head.split()[1]), json.loads(body)


@pytest.fixture(scope="module")
def hasty(tiny_module: ModuleType, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    log = tmp_path_factory.mktemp("hasty") / "log"
    limits = ("engine.arrive_seconds=1", "engine.stall_seconds=1", "engine.max_length=2000", "run.threads=1")
    with tiny_module.served(tiny_model, log, *limits) as server:
        yield server
        assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def engine_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The training loop's server, on its local socket."""
    folder = tmp_path_factory.mktemp("engine") / "model"
    save_model(folder, Decoder(ModelConfig(97, 32, 64, 2, 4, 2, 8)))
    loop = asyncio.new_event_loop()
    client: EngineClient = loop.run_until_complete(launch(folder, EngineSettings(arrive_seconds=1)))
    yield client.address
    loop.run_until_complete(client.close())
    loop.close()


@pytest.mark.parametrize("data", NOT_HTTP, ids=lambda data: repr(data[:20]))
def test_what_is_not_http_gets_an_error_in_json(hasty: Any, engine_address: str, data: bytes) -> None:
    status, body = ask(hasty.address, data)
    assert status == 400
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "not proper HTTP" in body["error"]["message"]
    assert "\n" not in body["error"]["message"]
    status, body = ask(engine_address, data)
    assert status == 400
    assert "not proper HTTP" in body["error"]


def test_what_aiohttp_refuses_by_itself_is_json_too(hasty: Any, engine_address: str) -> None:
    assert ask(hasty.address, EXPECTS)[1]["error"]["message"].startswith("Unknown Expect")
    assert ask(engine_address, EXPECTS) == (417, {"error": "Unknown Expect: wonders"})


def test_a_connection_on_which_no_request_arrives_is_closed(hasty: Any, engine_address: str) -> None:
    begin = time.monotonic()
    opened = []
    for address in (hasty.address, engine_address):
        for data in UNFINISHED:
            opened.append(connect(address))
            opened[-1].sendall(data)
    for raw in opened:
        assert all_of(raw) == b""
        raw.close()
    assert time.monotonic() - begin > 0.9


def test_a_head_that_comes_drop_by_drop_does_not_keep_its_connection(hasty: Any) -> None:
    """Behind a request that was answered."""
    with connect(hasty.address) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200")
        raw.settimeout(0.05)
        raw.sendall(b"GET /health HTTP/1.1\r\n")
        closed, end = False, time.monotonic() + SECONDS
        while not closed and time.monotonic() < end:
            try:
                raw.sendall(b"X: y\r\n")
                closed = raw.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                closed = True
    assert closed


def test_a_body_that_does_not_arrive_is_an_error(hasty: Any, engine_address: str) -> None:
    head = b"Host: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\nConnection: close\r\n\r\n{"
    for address, path in ((hasty.address, b"/v1/completions"), (engine_address, b"/generate")):
        with connect(address) as raw:
            raw.sendall(b"POST " + path + b" HTTP/1.1\r\n" + head)
            answer = raw.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"engine.arrive_seconds = 1" in answer


def test_bytes_that_are_no_text_are_refused_by_the_engines_routes(engine_address: str) -> None:
    for kind, body in ((b"application/json", b"\xff\xfe"), (b"application/json; charset=no-such", b"{}")):
        head = b"POST /generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: " + kind
        sent = head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        assert ask(engine_address, sent) == (400, {"error": "the body cannot be read: its encoding is broken"})


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_does_not_take_its_answer_is_dropped(hasty: Any, stream: bool) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 400, "ignore_eos": True, "logprobs": 20, "n": 16}
    data = json.dumps(body | {"stream": stream}).encode()
    before = hasty.files()
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = hasty.address.removeprefix("http://").split(":")
        raw.connect((host, int(port)))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        raw.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)
        end = time.monotonic() + SECONDS
        while hasty.files() <= before and time.monotonic() < end:
            pass  # until it has been let in
        while hasty.files() > before and time.monotonic() < end:
            pass
        assert hasty.files() <= before


def test_running_out_of_descriptors_is_one_line_in_the_log() -> None:
    program = textwrap.dedent(
        """
        import asyncio, resource, socket
        from etude.serve.connection import quiet_when_full

        async def main():
            loop = asyncio.get_running_loop()
            quiet_when_full(loop)
            server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, backlog=1024)
            address = server.sockets[0].getsockname()
            clients = [socket.socket() for _ in range(8)]
            free = socket.socket()
            resource.setrlimit(resource.RLIMIT_NOFILE, (free.fileno() + 1, free.fileno() + 1))
            free.close()
            for client in clients:
                client.setblocking(False)
                client.connect_ex(address)
            for _ in range(50):
                await asyncio.sleep(0)
            print("alive")

        asyncio.run(main())
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "alive" in done.stdout
    assert "ulimit -n" in done.stderr
    assert len(done.stderr) < 500  # with asyncio's own handler: a traceback for each of 1,024 tries

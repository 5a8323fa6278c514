"""What programs of one sandbox may take of the host's memory and files through its egress proxy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from pathlib import Path

import pytest

from etude.sandbox.egress import authority as authorities
from etude.sandbox.egress import proxy as proxies
from etude.sandbox.egress.authority import CertificateAuthority
from etude.sandbox.egress.policy import EgressPolicy
from etude.sandbox.egress.proxy import EgressLimits, EgressProxy

pytest.importorskip("cryptography")


async def resolve(name: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def test_connections_are_bounded_and_a_chunk_is_passed_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "_MOST_OPEN", 5)
    lines: list[str] = []

    async def go() -> None:
        heard = asyncio.Event()

        async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(12) == b"800000\r\npart"
            heard.set()
            writer.close()

        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        async with await asyncio.start_server(upstream, "127.0.0.1", 0) as server:
            there = server.sockets[0].getsockname()[1]
            policy = EgressPolicy.of((), [f"allowed.test:{there}"])
            proxy = EgressProxy(policy, CertificateAuthority(), lines.append, resolver=resolve)
            await proxy.listen(listener)
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST http://allowed.test:{there}/ HTTP/1.1\r\nHost: allowed.test:{there}\r\n"
            writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n800000\r\npart".encode())
            await heard.wait()  # long before the chunk is whole
            writer.close()
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
            ended = [asyncio.ensure_future(reader.read()) for reader, _ in idle]
            while sum(each.done() for each in ended) < 3:  # refused at once, the others are waited for
                await asyncio.sleep(0.01)
            assert len(proxy._tasks) <= 5
            await proxy.close()
            for _, writer in idle:
                writer.close()
            await asyncio.gather(*ended, return_exceptions=True)

    asyncio.run(asyncio.wait_for(go(), 60))
    assert all(len(line) < 3000 for line in lines)


def test_a_host_that_goes_on_saying_that_it_goes_on_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "_BODY_SECONDS", 0.5)

    async def go() -> None:
        async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while True:
                    writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.01)

        listener = socket.create_server(("127.0.0.1", 0))
        async with await asyncio.start_server(upstream, "127.0.0.1", 0) as server:
            name = f"allowed.test:{server.sockets[0].getsockname()[1]}"
            policy = EgressPolicy.of((), [name])
            proxy = EgressProxy(policy, CertificateAuthority(), lambda _: None, resolver=resolve)
            await proxy.listen(listener)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(f"GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            assert b"502" in await reader.readline()
            writer.close()
            await proxy.close()

    asyncio.run(asyncio.wait_for(go(), 20))


def test_names_that_nobody_answers_for_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def slow(*_: object, **__: object) -> list[tuple[object, ...]]:
        answered.wait(60)
        return [(0, 0, 0, "", ("192.0.2.1", 443))]

    monkeypatch.setattr("socket.getaddrinfo", slow)

    async def go() -> None:
        asked = [asyncio.ensure_future(proxies.resolve(f"{number}.test", 443)) for number in range(64)]
        try:
            # Threads that all of this process shares: starts of other sandboxes wait for them.
            assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 20) == "done"
        finally:
            answered.set()
        assert await asyncio.gather(*asked) == [["192.0.2.1"]] * 64

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_program_cannot_fill_the_hosts_disk_with_its_log() -> None:
    lines: list[str] = []

    async def go() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        port, limits = listener.getsockname()[1], EgressLimits(requests=3)
        proxy = EgressProxy(EgressPolicy.of(["a.test"]), CertificateAuthority(), lines.append, limits=limits)
        await proxy.listen(listener)
        answers = []
        for asked in (b"GET http://b.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n", b"\r\n\r\n") * 4:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(asked)
            answers.append(await reader.read())
            writer.close()
        await proxy.close()
        assert [b"is not allowed" in answer for answer in answers[::2]] == [True, True, False, False]
        assert all(b"403" in answer and b"has made 3 requests" in answer for answer in answers[4::2])

    asyncio.run(asyncio.wait_for(go(), 60))
    assert len(lines) == 4 and "has made 3 requests" not in lines[2]  # the last says why there are no more


def test_certificates_are_bounded_and_each_compares_with_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorities, "_MOST_CONTEXTS", 2)
    authority = CertificateAuthority()
    kept = authority.context("a.test")
    for name in ("b.test", "c.test"):
        authority.context(name)
    assert list(authority._contexts) == ["b.test", "c.test"]

    def handshake(sni: str) -> None:
        trust = ssl.create_default_context(cadata=authority.pem)
        trust.check_hostname = False
        client_in, client_out, server_in, server_out = (ssl.MemoryBIO() for _ in range(4))
        client = trust.wrap_bio(client_in, client_out, server_hostname=sni)
        server = kept.wrap_bio(server_in, server_out, server_side=True)
        for _ in range(4):
            for side, out, there in ((client, client_out, server_in), (server, server_out, client_in)):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    pass
                finally:
                    there.write(out.read())

    handshake("A.test.")
    with pytest.raises(ssl.SSLError):
        handshake("b.test")

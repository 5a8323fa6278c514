"""The proxy that is the only way out of a sandbox with an allow-list.

Programs reach it on a port of their own loopback, where this process listens (a socket of the sandbox's network
namespace, which init hands out): there is no other interface, route or resolver in there. Each connection carries one
request. Names are checked before they are resolved, all addresses before one is connected to, and that very address is
then used, so a name that changes in between gains nothing. TLS ends here and begins anew, so requests inside it are
held to the same rules. Redirects are passed on, and come back as requests like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final
from urllib.parse import urlsplit

from etude.sandbox.egress.authority import CertificateAuthority
from etude.sandbox.egress.http_message import (
    MOST_HEAD,
    STRIPPED,
    STRIPPED_BACK,
    BadMessage,
    Head,
    chunk_size,
    read_head,
)
from etude.sandbox.egress.policy import EgressPolicy, Refused, own_addresses

PORT: Final = 3128  # on the sandbox's loopback
CA_FILE: Final = "egress-ca.pem"  # in the sandbox's /etc
_PROXY: Final = f"http://127.0.0.1:{PORT}"
# Both spellings: programs differ in which they read. The authority's file under the names of the common libraries.
PROXY_VARIABLES: Final = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), _PROXY),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1"),
    **dict.fromkeys(
        ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "GIT_SSL_CAINFO"),
        f"/etc/{CA_FILE}",
    ),
}
_HEAD_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 30.0
_BODY_SECONDS: Final = 300.0  # for a whole body
_MOST_AT_ONCE: Final = 64  # connections of one sandbox
_MOST_OPEN: Final = 256  # those that wait included: each is an open file of this process; further ones are closed
_BLOCK: Final = 1 << 16

Resolve = Callable[[str, int], Awaitable[list[str]]]


@dataclass(frozen=True)
class EgressLimits:
    requests: int = 20_000  # of one sandbox: each is a line of the log, which lies on the host's disk
    request_bytes: int = 16 << 20  # of a body that leaves
    response_bytes: int = 1 << 30


@cache
def _resolving() -> ThreadPoolExecutor:
    """Threads of its own: a resolver that does not answer would hold those that all of this process shares."""
    return ThreadPoolExecutor(16, "egress-names")


async def resolve(name: str, port: int) -> list[str]:
    """The addresses of a name, by this machine's resolver."""
    ask = partial(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_resolving(), ask)
    return list(dict.fromkeys(str(row[4][0]) for row in found))


@dataclass
class _Request:
    """One connection, as the log tells it."""

    number: int
    method: str = ""
    host: str = ""
    port: int = 0
    path: str = ""
    status: int = 0
    sent: int = 0
    received: int = 0
    refused: str = ""
    began: float = field(default_factory=time.time)


class EgressProxy:
    """Serves the connections of one sandbox."""

    def __init__(
        self,
        policy: EgressPolicy,
        authority: CertificateAuthority,
        log: Callable[[str], None],
        *,
        name: str = "",
        limits: EgressLimits | None = None,
        resolver: Resolve = resolve,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._policy, self._authority, self._log, self._name = policy, authority, log, name
        self._limits = limits or EgressLimits()
        self._resolve = resolver
        self._trust = trust or ssl.create_default_context()
        self._own = own_addresses()
        self._at_once = asyncio.Semaphore(_MOST_AT_ONCE)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._made = 0  # requests so far

    async def listen(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._connected, sock=listener, limit=2 * MOST_HEAD)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= _MOST_OPEN:
            writer.transport.abort()
            return
        self._tasks.add(task)
        self._made += 1
        request = _Request(self._made)
        try:
            async with self._at_once:
                try:
                    await self._serve(reader, writer, request)
                except (Refused, BadMessage) as refused:
                    request.refused = str(refused)
                    await self._answer(writer, request, 403 if isinstance(refused, Refused) else 400, str(refused))
                except (OSError, ssl.SSLError, EOFError, asyncio.LimitOverrunError) as error:
                    request.refused = f"failed: {type(error).__name__}"
                    await self._answer(writer, request, 502, "the host could not be reached, or broke off")
                writer.close()
                # A program that does not read would keep the connection, which is a file of this process, for ever.
                with contextlib.suppress(OSError):
                    async with asyncio.timeout(_HEAD_SECONDS):
                        await writer.wait_closed()
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            if request.number <= self._limits.requests + 1:  # the last line says why there are no more
                self._write_log(request)

    def _write_log(self, request: _Request) -> None:
        facts = {"time": round(request.began, 3), "sandbox": self._name, **vars(request)}
        facts["seconds"] = round(time.time() - facts.pop("began"), 3)
        for name in ("method", "host", "path"):  # each may be as long as a head
            facts[name] = facts[name][:500]
        self._log(json.dumps(facts))

    async def _answer(self, writer: asyncio.StreamWriter, request: _Request, status: int, text: str) -> None:
        if request.status:  # an answer is on its way already: breaking off is all that is left
            return
        request.status = status
        body = f"egress proxy: {text}\n".encode()
        head = f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        with contextlib.suppress(OSError, ssl.SSLError):
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
            async with asyncio.timeout(_HEAD_SECONDS):
                await writer.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: _Request) -> None:
        head = await _read_head(reader, request_side=True)
        method, target, _ = head.first
        request.method, request.path = method, target
        if request.number > self._limits.requests:
            raise Refused(f"this sandbox has made {self._limits.requests} requests, and may make no more")
        secure = method == "CONNECT"
        if secure:
            request.host, request.port = _authority(target, None)
            name = self._policy.check_name(request.host, request.port)
            addresses = await self._addresses(name, request.port)  # before the tunnel stands, so that it is refused
            if head.length or head.chunked:
                raise BadMessage("a CONNECT has no body")
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            async with asyncio.timeout(_HEAD_SECONDS):
                await writer.drain()
                await writer.start_tls(self._authority.context(name))  # which refuses another name in TLS
            head = await _read_head(reader, request_side=True)
            request.method, request.path = head.first[0], head.first[1]
            path = head.first[1]
            if not path.startswith("/") or head.first[0] == "CONNECT":
                raise BadMessage("inside a tunnel only a path may be asked for")
        else:
            try:
                parts = urlsplit(target)
            except ValueError:
                raise BadMessage("that is no address") from None
            if parts.scheme.lower() != "http" or not parts.netloc:
                raise BadMessage("ask for http://host/path, or CONNECT host:443")
            request.host, request.port = _authority(parts.netloc, 80)
            name = self._policy.check_name(request.host, request.port)
            addresses = await self._addresses(name, request.port)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            request.path = path
        self._check_request(head, name, request.port, 443 if secure else 80)
        await self._forward(head, path, addresses, name, request, (reader, writer), secure=secure)

    def _check_request(self, head: Head, name: str, port: int, usual: int) -> None:
        hosts = head.get("host")
        if len(hosts) != 1:
            raise BadMessage("it has not exactly one Host")
        host, given = _authority(hosts[0], usual)
        if host.lower().removesuffix(".") != name or given != port:
            raise Refused("Host names another host than the request")
        if head.get("upgrade") or head.get("http2-settings"):
            raise Refused("no other protocol is spoken here")
        if head.first[0] in ("TRACE", "CONNECT", "PRI"):
            raise Refused(f"{head.first[0]} is not allowed")
        if head.length is not None and head.length > self._limits.request_bytes:
            raise Refused(f"a request of more than {self._limits.request_bytes} bytes may not leave")

    async def _addresses(self, name: str, port: int) -> list[str]:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                found = await self._resolve(name, port)
        except OSError:
            raise Refused(f"{name} has no address") from None
        self._policy.check_addresses(name, port, found, self._own)
        return found

    async def _forward(
        self,
        head: Head,
        path: str,
        addresses: list[str],
        name: str,
        request: _Request,
        program: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        secure: bool,
    ) -> None:
        async with asyncio.timeout(_CONNECT_SECONDS):
            # To the address that was checked: the name is not looked up again.
            reader, writer = await asyncio.open_connection(
                addresses[0],
                request.port,
                limit=2 * MOST_HEAD,
                ssl=self._trust if secure else None,
                server_hostname=name if secure else None,
            )
        try:
            shown = name if request.port == (443 if secure else 80) else f"{name}:{request.port}"
            lines = [f"{head.first[0]} {path} HTTP/1.1", f"host: {shown}", "connection: close"]
            lines += [f"{key}: {value}" for key, value in head.kept(STRIPPED)]
            lines += ["transfer-encoding: chunked"] if head.chunked else []
            lines += [f"content-length: {head.length}"] if head.length and not head.chunked else []
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
            async with asyncio.timeout(_BODY_SECONDS):
                request.sent = await _copy_body(head, program[0], writer, self._limits.request_bytes)
            async with asyncio.timeout(_BODY_SECONDS):  # of all that come before the answer
                while (answer := await _read_head(reader, request_side=False)).first[1].startswith("1"):
                    if answer.first[1] == "101":
                        raise Refused("the host wanted another protocol")
            await self._pass_back(answer, head.first[0] == "HEAD", reader, program[1], request)
        finally:
            writer.transport.abort()  # it was heard to the end, or is not heard any more

    async def _pass_back(
        self,
        answer: Head,
        only_head: bool,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        request: _Request,
    ) -> None:
        request.status = int(answer.first[1])
        lines = [f"HTTP/1.1 {answer.first[1]} {answer.first[2]}", "connection: close"]
        lines += [f"{key}: {value}" for key, value in answer.kept(STRIPPED_BACK)]
        lines += ["transfer-encoding: chunked"] if answer.chunked else []
        lines += [f"content-length: {answer.length}"] if answer.length is not None else []
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        if not only_head and request.status not in (204, 304):
            async with asyncio.timeout(_BODY_SECONDS):
                request.received = await _copy_body(answer, reader, writer, self._limits.response_bytes)
        await writer.drain()


async def _read_head(reader: asyncio.StreamReader, *, request_side: bool) -> Head:
    try:
        async with asyncio.timeout(_HEAD_SECONDS if request_side else _BODY_SECONDS):
            data = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as cut:
        raise BadMessage("it ends within its head" if cut.partial else "nothing was asked") from None
    except asyncio.LimitOverrunError:
        raise BadMessage(f"its head is longer than {MOST_HEAD} bytes") from None
    if len(data) > MOST_HEAD:
        raise BadMessage(f"its head is longer than {MOST_HEAD} bytes")
    return read_head(data, request=request_side)


async def _copy_body(head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int) -> int:
    """How many bytes went; `Refused` past the most that may."""
    copied = 0
    if head.chunked:
        while True:
            size = chunk_size(await reader.readuntil(b"\r\n"))
            copied += size
            if copied > most:
                raise Refused(f"a body of more than {most} bytes does not go through")
            writer.write(f"{size:x}\r\n".encode())
            of_chunk = size
            while of_chunk:  # in blocks: a chunk may be as large as a body, and this is the host's memory
                data = await reader.read(min(of_chunk, _BLOCK))
                if not data:
                    raise EOFError("a body ended within a chunk")
                of_chunk -= len(data)
                writer.write(data)
                await writer.drain()
            if await reader.readexactly(2) != b"\r\n":
                raise BadMessage("a chunk does not end as it must")
            writer.write(b"\r\n")
            await writer.drain()
            if size == 0:
                return copied
    left = head.length
    while left is None or left > 0:
        data = await reader.read(_BLOCK if left is None else min(left, _BLOCK))
        if not data:
            if left is not None:
                raise EOFError("a body ended before its length")
            break
        copied += len(data)
        left = None if left is None else left - len(data)
        if copied > most:
            raise Refused(f"a body of more than {most} bytes does not go through")
        writer.write(data)
        await writer.drain()
    return copied


def _authority(text: str, usual: int | None) -> tuple[str, int]:
    """Host and port; users, brackets and anything else that is no name are refused."""
    host, colon, port = text.partition(":")
    if "@" in text or not host or (colon and not (port.isascii() and port.isdigit() and len(port) <= 5)):
        raise BadMessage("that is no host and port")
    number = int(port) if colon else usual
    if number is None or not 0 < number < 65536:
        raise BadMessage("that is no port")
    return host, number

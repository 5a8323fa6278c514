"""Every way around the egress proxy, from a real sandbox, against servers of this machine that must not be reached."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from etude.sandbox.base import Egress, Sandbox
from etude.sandbox.egress.authority import CertificateAuthority
from etude.sandbox.egress.policy import own_addresses
from etude.sandbox.hosts import StoringHost
from etude.sandbox.local.host import LocalHost
from redteam.egress.ways import PRELUDE, WAYS
from redteam.result import SuiteResult

NAMES = {
    "allowed.test": ["127.0.0.1"],
    "secure.test": ["127.0.0.1"],
    "private.test": ["10.0.0.1"],
    "metadata.test": ["169.254.169.254"],
    "mixed.test": ["93.184.215.14", "127.0.0.1"],
}


@dataclass
class Outside:
    """What reached the world outside."""

    own: str
    canary: int = 0  # connections and datagrams at the server that nobody may reach
    requests: list[bytes] = field(default_factory=list)  # as the allowed servers were sent them
    resolved: list[str] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)

    def marks(self) -> tuple[int, int, int]:
        return self.canary, len(self.requests), len(self.resolved)

    def escaped(self, before: tuple[int, int, int]) -> str:
        """What got out since then that should not have."""
        if self.canary > before[0]:
            return "the canary was reached"
        if hidden := [each for each in self.requests[before[1] :] if b"hidden" in each]:
            return f"an allowed server was sent {hidden[0][:200]!r}"
        allowed = {*NAMES, "rebind.test"}
        if strange := [name for name in self.resolved[before[2] :] if name not in allowed]:
            return f"{strange[0]} was resolved"
        return ""

    async def resolve(self, name: str, port: int) -> list[str]:
        self.resolved.append(name)
        if name == "rebind.test":  # private at first, mapped into IPv6 then, and so on
            return [("127.0.0.1", "::ffff:127.0.0.1", "::1")[len(self.resolved) % 3]]
        return NAMES[name]


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def datagram_received(self, data: bytes, address: object) -> None:
        self._outside.canary += 1


@contextlib.asynccontextmanager
async def outside_world(authority: CertificateAuthority) -> AsyncIterator[Outside]:
    addresses = [each for each in own_addresses() if isinstance(each, ipaddress.IPv4Address) and not each.is_loopback]
    outside = Outside(str(addresses[0]) if addresses else "127.0.0.1")

    async def canary(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outside.canary += 1
        writer.close()

    async def allowed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, ssl.SSLError):
            head = await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0)
            outside.requests.append(head + bytes(reader._buffer))  # type: ignore[attr-defined]
            if b"/redirect" in head:
                place = f"Location: http://127.0.0.1:{outside.ports['CANARY']}/\r\n"
                writer.write(f"HTTP/1.1 302 Found\r\n{place}Content-Length: 0\r\n\r\n".encode())
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
        writer.close()

    async with contextlib.AsyncExitStack() as stack:
        # The loopback and every other address of this machine, with one port.
        first = await asyncio.start_server(canary, "0.0.0.0", 0)
        port = first.sockets[0].getsockname()[1]
        servers = [first]
        with contextlib.suppress(OSError):
            servers.append(await asyncio.start_server(canary, "::1", port))
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind(f"\0etude-canary-{os.getpid()}")  # others may run this at the same time
        servers.append(await asyncio.start_unix_server(canary, sock=abstract))
        servers.append(plain := await asyncio.start_server(allowed, "127.0.0.1", 0))
        secure = await asyncio.start_server(allowed, "127.0.0.1", 0, ssl=authority.context("secure.test"))
        servers.append(secure)
        for server in servers:
            stack.callback(server.close)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(outside), ("0.0.0.0", port))
        stack.callback(transport.close)
        ports = (port, plain.sockets[0].getsockname()[1], secure.sockets[0].getsockname()[1])
        outside.ports = dict(zip(("CANARY", "ALLOWED", "SECURE"), ports, strict=True))
        yield outside


async def run_egress_ways(host: StoringHost, names: Sequence[str] = tuple(WAYS)) -> SuiteResult:
    """Each way once. Before them, honest requests must pass, or the rest proves nothing."""
    assert isinstance(host, LocalHost)
    result = SuiteResult("egress")
    authority = CertificateAuthority()
    async with outside_world(authority) as outside:
        trust = ssl.create_default_context(cadata=authority.pem)
        host.egress_options = {"resolver": outside.resolve, "trust": trust}
        ports = outside.ports
        egress = Egress(
            ("private.test", "metadata.test", "mixed.test", "rebind.test"),
            (f"allowed.test:{ports['ALLOWED']}", f"secure.test:{ports['SECURE']}"),
        )
        layer = host.store.add_files({"x": b""})
        known = {**ports, "OWN": outside.own, "PID": os.getpid()}
        scope = "".join(f"{name} = {value!r}\n" for name, value in known.items())
        async with await host.start([layer], network=True) as open_network:
            # A control: where there is a network, the canary is found.
            await open_network.run(["python3", "-S", "-c", f"{PRELUDE}{scope}{WAYS['direct to the loopback']}\n"])
            if not outside.canary:
                result.broken.append("the canary cannot be reached even with a network")
        try:
            async with await host.start([layer], network=egress) as sandbox:
                await _honest(sandbox, outside, result)
                for name in names:
                    before = outside.marks()
                    done = await sandbox.run(["python3", "-S", "-c", f"{PRELUDE}{scope}{WAYS[name]}\n"], timeout=60)
                    await asyncio.sleep(0.01)  # what was sent may still be on its way to our servers
                    result.tried += 1
                    if why := outside.escaped(before):
                        result.missed.append(f"{name}: {why}")
                    if done.timed_out or b"SyntaxError" in done.stderr or b"NameError" in done.stderr:
                        result.broken.append(f"{name}: {done.stderr[-300:]!r}")
        finally:
            host.egress_options = {}
    return result


async def _honest(sandbox: Sandbox, outside: Outside, result: SuiteResult) -> None:
    ports = outside.ports
    for address in (
        f"http://ALLOWED.test.:{ports['ALLOWED']}/plain",
        f"https://secure.test:{ports['SECURE']}/inside",
    ):
        code = (
            f"import urllib.request as u; r = u.urlopen({address!r}, timeout=20); print(r.status, r.read(), r.headers)"
        )
        done = await sandbox.run(["python3", "-c", code])
        if not done.stdout.startswith(b"200 b'ok'") or b"a=b" in done.stdout:
            result.broken.append(f"an honest request failed: {address}: {done.stderr[-300:]!r}")

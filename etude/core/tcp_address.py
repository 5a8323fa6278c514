"""Where a process of ours listens on TCP: a file that says it, how both ends prove who they are, and a fence.

A process that is reached over a network writes its address into a file that only this user can read: host, port, a
token of its own and its incarnation (which of the processes that have had its name it is). Whoever connects and whoever
listens prove to each other that they know that token, without sending it: each answers a random challenge of the other
(`SharedSecret`, also for servers whose token a person sets). An answer is taken only while the file still names the
process that it came from: one whose place another has taken is fenced. Knows no verb and no message; what is sent
afterwards is not encrypted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import secrets
import socket as sockets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError

FILE = "file:"  # what addresses that are files begin with
GREETING = 10.0  # seconds in which somebody who connects must have proven who they are
_NONCE = _PROOF = 32  # bytes: a challenge, and its answer (SHA-256)
# A host that loses its power closes no connection: it is given up after 10 + 3 * 5 seconds without a sign.
_IDLE, _INTERVAL, _PROBES = 10, 5, 3


class NotThere(EtudeError):
    """Nobody listens at the address, or not the one that it names."""


@dataclass(frozen=True)
class SharedSecret:
    """What both ends of a connection know. A proof for one purpose proves nothing for another."""

    key: bytes
    purpose: str  # who listens: "a sandbox host", "incarnation 0.1"

    def proof(self, side: str, nonces: bytes) -> bytes:
        """Of one side, over the challenges of both: one that was recorded fits no other connection."""
        return hmac.digest(self.key, f"{side} {self.purpose} ".encode() + nonces, "sha256")


@dataclass(frozen=True)
class TcpAddress:
    """One process at one place."""

    host: str
    port: int
    token: str
    incarnation: str  # "lineage.number"

    @property
    def secret(self) -> SharedSecret:
        return SharedSecret(bytes.fromhex(self.token), f"incarnation {self.incarnation}")


@dataclass(frozen=True)
class Announced:
    """Where a process is to listen, and where it says so."""

    path: Path
    host: str
    incarnation: str


def listen_at(where: Announced) -> tuple[sockets.socket, TcpAddress]:
    """A listening socket on a free port, and its address, which is in the file from here on."""
    try:
        family = sockets.AF_INET6 if ":" in where.host else sockets.AF_INET
        listener = sockets.create_server((where.host, 0), family=family, backlog=1024)
    except OSError as refused:
        raise EtudeError(f"cannot listen on {where.host} ({refused}); is it an address of this machine?") from None
    address = TcpAddress(where.host, listener.getsockname()[1], secrets.token_hex(32), where.incarnation)
    working = where.path.with_name(f".{where.path.name}.{os.getpid()}")
    try:
        working.unlink(missing_ok=True)
        handle = os.open(working, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(address), file)
        working.replace(where.path)
    except OSError as refused:
        listener.close()
        raise EtudeError(f"the address cannot be written to {where.path}: {refused}") from None
    return listener, address


def read_address(path: Path) -> TcpAddress:
    try:
        found = json.loads(path.read_text())
        address = TcpAddress(str(found["host"]), int(found["port"]), str(found["token"]), str(found["incarnation"]))
        bytes.fromhex(address.token)
    except OSError as missing:
        raise NotThere(f"there is no address at {path} ({missing.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise EtudeError(f"{path} holds no address of a process") from None
    return address


class Fence:
    """Whether a file still names the process that somebody is connected to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = self._look()
        self.address = read_address(path)

    def holds(self) -> bool:
        """Asked for each answer: one `stat`, and the file is read again only when it was replaced."""
        seen = self._look()
        if seen == self._seen:
            return True
        with contextlib.suppress(EtudeError):
            if read_address(self.path).incarnation == self.address.incarnation:
                self._seen = seen
                return True
        return False

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


async def connect(address: TcpAddress) -> sockets.socket:
    """A connection to exactly that process."""
    return await connect_to(f"{address.host}:{address.port}", address.secret)


async def connect_to(place: str, secret: SharedSecret) -> sockets.socket:
    """A connection to who listens at HOST:PORT, or at the path of a local socket, and knows the secret."""
    sock: sockets.socket | None = None
    try:
        async with asyncio.timeout(GREETING):
            sock = await _open(place)
            await _prove(sock, secret, place)
            return sock
    except BaseException as error:
        if sock is not None:
            sock.close()
        # ValueError and OverflowError: the place has no port, or its host is no name.
        if isinstance(error, (OSError, TimeoutError, ValueError, OverflowError)):
            raise NotThere(f"nobody answers at {place} ({str(error) or 'too slow'})") from None
        raise


async def _open(place: str) -> sockets.socket:
    loop = asyncio.get_running_loop()
    if "/" in place:
        found: list[Any] = [(sockets.AF_UNIX, place)]
    else:
        host, _, port = place.rpartition(":")
        listed = await loop.getaddrinfo(host.strip("[]"), int(port), type=sockets.SOCK_STREAM)
        found = [(family, where) for family, _, _, _, where in listed]
    for last, (family, where) in enumerate(found, 1 - len(found)):
        sock = sockets.socket(family, sockets.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, where)
        except BaseException as error:
            sock.close()
            if last < 0 and isinstance(error, OSError):
                continue  # a name may have several addresses
            raise
        _keep_alive(sock)
        return sock
    raise ConnectionRefusedError("the name has no address")


async def _prove(sock: sockets.socket, secret: SharedSecret, place: str) -> None:
    theirs = await _receive(sock, _NONCE)
    ours = secrets.token_bytes(_NONCE)
    await asyncio.get_running_loop().sock_sendall(sock, ours + secret.proof("client", theirs + ours))
    try:
        said = await _receive(sock, _PROOF)
    except ConnectionResetError:
        raise NotThere(f"who listens at {place} has another token, or is not {secret.purpose}") from None
    if not hmac.compare_digest(said, secret.proof("server", ours + theirs)):
        raise NotThere(f"who listens at {place} is not {secret.purpose}")


async def welcome(sock: sockets.socket, secret: SharedSecret) -> bool:
    """The listening side of `connect_to`; False, and the connection is closed, for whoever does not know the secret."""
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    try:
        async with asyncio.timeout(GREETING):
            _keep_alive(sock)
            ours = secrets.token_bytes(_NONCE)
            await loop.sock_sendall(sock, ours)
            theirs = await _receive(sock, _NONCE)
            said = await _receive(sock, _PROOF)
            if hmac.compare_digest(said, secret.proof("client", ours + theirs)):
                await loop.sock_sendall(sock, secret.proof("server", theirs + ours))
                return True
    except (OSError, TimeoutError):
        pass
    except BaseException:
        sock.close()
        raise
    sock.close()
    return False


async def accept_one(listener: sockets.socket, address: TcpAddress, seconds: float) -> sockets.socket:
    """The first who knows the token, as a blocking socket; TimeoutError when nobody does."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    found: asyncio.Future[sockets.socket] = loop.create_future()
    greeting: set[asyncio.Task[None]] = set()

    async def greet(sock: sockets.socket) -> None:
        if await welcome(sock, address.secret):
            if found.done():
                sock.close()
            else:
                found.set_result(sock)

    async def accept() -> None:
        while True:
            sock, _ = await loop.sock_accept(listener)
            # Beside the others: a stranger who says nothing must not make everybody wait.
            task = asyncio.create_task(greet(sock))
            greeting.add(task)
            task.add_done_callback(greeting.discard)

    accepting = asyncio.create_task(accept())
    try:
        async with asyncio.timeout(seconds):
            waited: set[asyncio.Future[Any]] = {accepting, found}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (accepting, *greeting):
            task.cancel()
    if not found.done():
        accepting.result()  # why nobody can be accepted
    sock = found.result()
    sock.setblocking(True)
    return sock


async def _receive(sock: sockets.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = await asyncio.get_running_loop().sock_recv(sock, count - len(data))
        if not piece:
            raise ConnectionResetError("the other side closed the connection")
        data += piece
    return data


def _keep_alive(sock: sockets.socket) -> None:
    if sock.family == sockets.AF_UNIX:
        return
    sock.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _IDLE), ("TCP_KEEPINTVL", _INTERVAL), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(sockets, name):  # macOS has another name for the first
            sock.setsockopt(sockets.IPPROTO_TCP, getattr(sockets, name), value)
    sock.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)

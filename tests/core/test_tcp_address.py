"""Processes that are reached over TCP: found by a file, proven by a token, fenced when another takes their place."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etude.core.child_process import start
from etude.core.errors import EtudeError
from etude.core.frame_calls import Answering, Caller, ConnectionLost, Send
from etude.core.tcp_address import (
    FILE,
    Announced,
    NotThere,
    SharedSecret,
    TcpAddress,
    accept_one,
    connect,
    connect_to,
    listen_at,
    read_address,
)
from etude.core.transport import Frame

SECONDS = 30.0


class Server:
    """Answers with its name; `slow` only when it is told to."""

    def __init__(self, name: str) -> None:
        self.name, self.asked, self.answered = name, asyncio.Event(), 0
        self.go_on = asyncio.Event()
        self.answering = Answering(self.handle)

    async def handle(self, frame: Frame, send: Send) -> Frame:
        self.asked.set()
        if frame.header["verb"] == "slow":
            await self.go_on.wait()
            send(Frame({"message": "soon"}))
        self.answered += 1
        return Frame({"message": self.name})

    async def listen(self, path: Path, incarnation: str) -> TcpAddress:
        listener, address = listen_at(Announced(path, "127.0.0.1", incarnation))
        await self.answering.listen(listener, address.secret)
        return address


def test_no_answer_is_taken_from_a_process_whose_place_another_has_taken(tmp_path: Path) -> None:
    async def scene() -> None:
        public, news = tmp_path / "engine-0", list[Any]()
        old, new = Server("old"), Server("new")
        await old.listen(tmp_path / "engine-0.0.1", "0.1")
        (tmp_path / "engine-0.0.1").replace(public)
        caller = Caller(f"{FILE}{public}", deadline=SECONDS)
        assert (await caller.call(Frame({"verb": "name"}))).header["message"] == "old"
        under_way = asyncio.ensure_future(caller.call(Frame({"verb": "slow"}), on_news=news.append))
        old.asked.clear()
        await old.asked.wait()
        await new.listen(tmp_path / "engine-0.0.2", "0.2")
        # Not published yet: the old one is still the one to ask.
        assert (await caller.call(Frame({"verb": "name"}))).header["message"] == "old"
        (tmp_path / "engine-0.0.2").replace(public)
        old.go_on.set()
        with pytest.raises(ConnectionLost, match=r"another process has taken the place of incarnation 0\.1"):
            await under_way
        assert old.answered == 3 and news == []  # it answered, and nobody heard it
        assert (await caller.call(Frame({"verb": "name"}))).header["message"] == "new"
        for server in (old, new):
            await server.answering.close()
        caller.close()

    asyncio.run(scene())


def test_only_who_knows_the_token_is_answered_and_only_the_named_process_is_asked(tmp_path: Path) -> None:
    async def scene() -> None:
        server = Server("mine")
        address = await server.listen(tmp_path / "worker-0", "3.1")
        assert stat.S_IMODE((tmp_path / "worker-0").stat().st_mode) == 0o600
        assert read_address(tmp_path / "worker-0") == address
        with pytest.raises(NotThere):
            await connect(replace(address, token="00" * 32))
        with pytest.raises(NotThere):  # its port, but another process's name
            await connect(replace(address, incarnation="3.2"))
        # Somebody who speaks frames and knows no token: the connection is closed, and no verb is heard.
        reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
        writer.write(b"ETF1" + bytes(60))
        assert len(await reader.read()) == 32 and not server.asked.is_set()
        writer.close()
        # Whoever listens at the port and does not know the token gets nothing but a proof that is of no use to it.
        heard = bytearray()

        async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(32))
            heard.extend(await reader.readexactly(64))
            writer.write(bytes(32))

        async with await asyncio.start_server(impostor, "127.0.0.1", 0) as fake:
            port = fake.sockets[0].getsockname()[1]
            with pytest.raises(NotThere, match=r"is not incarnation 3\.1"):
                await connect(replace(address, port=port))
        assert bytes.fromhex(address.token) not in heard
        await server.answering.close()

    asyncio.run(scene())


def test_a_stranger_who_says_nothing_makes_nobody_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.core.tcp_address.GREETING", 600.0)

    async def scene() -> None:
        listener, address = listen_at(Announced(tmp_path / "learner", "127.0.0.1", "0.1"))
        with listener:
            stranger = await asyncio.open_connection("127.0.0.1", address.port)
            accepted = asyncio.ensure_future(accept_one(listener, address, SECONDS))
            ours = await connect(address)
            theirs = await accepted
            ours.close()
            theirs.close()
            stranger[1].close()
            with pytest.raises(TimeoutError):
                await accept_one(listener, address, 0.01)

    asyncio.run(asyncio.wait_for(scene(), 2 * SECONDS))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"host": "h", "port": 1, "token": "no hex", "incarnation": "0.1"}'])
def test_a_file_that_is_no_address_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "engine-0").write_text(text)
    with pytest.raises(EtudeError, match="engine-0 holds no address of a process"):
        read_address(tmp_path / "engine-0")


PROGRAM = """
import argparse, sys, time
from etude.core import child_process as child
parser = argparse.ArgumentParser()
child.add_arguments(parser)
options = parser.parse_args()
print("ready", flush=True)  # first: on a busy machine a short lease may be over before the next line
child.end_with(options, [options.folder])
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["no renewal", "closed"])
def test_a_process_ends_when_its_lease_is_not_renewed(tmp_path: Path, how: str) -> None:
    (tmp_path / "leased.py").write_text(PROGRAM)

    async def scene() -> None:
        child = await start(
            "leased",
            "leased",
            [],
            ready="ready",
            log=tmp_path / "log",
            deadline=SECONDS,
            lease=0.2 if how == "no renewal" else 1e6,
            environment={"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        )
        assert child.process.stdin is not None
        if how == "closed":
            child.process.stdin.close()
        await asyncio.wait_for(child.wait(), SECONDS)
        assert child.process.returncode == 1 and "lease" in (tmp_path / "log").read_text()
        await child.close(0)

    asyncio.run(scene())


@pytest.mark.parametrize("place", ["no-port", "127.0.0.1:x", "127.0.0.1:99999999999", "a..b:80", f"{'x' * 70}:80"])
def test_a_place_that_is_none_is_like_one_where_nobody_is(place: str) -> None:
    with pytest.raises(NotThere, match="nobody answers"):
        asyncio.run(connect_to(place, SharedSecret(b"key", "a test")))

"""Calls in frames over a local socket: answers, refusals, news, cancellation, and a server that goes away."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.core.child_process import listen
from etude.core.errors import EtudeError
from etude.core.frame_calls import Answering, Caller, ConnectionLost, Send, _Frames, joined_news, split_news
from etude.core.tcp_address import SharedSecret
from etude.core.transport import PREFIX_BYTES, Frame, read_frame, read_prefix, write_frame

SECONDS = 20.0  # for what should take none


class Desk:
    """A server with a verb for each thing that can happen."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.began = asyncio.Event()

    async def handle(self, frame: Frame, send: Send) -> Frame:
        match frame.header["verb"]:
            case "double":
                return Frame({"of": frame.header["of"]}, {"x": frame.arrays["x"] * 2})
            case "refuse":
                raise EtudeError("not today")
            case "end":
                raise ConnectionLost("it is about to end")
            case "unsendable":
                return Frame({"what": object()})
            case "tell":
                for number in range(3):
                    send(Frame({"part": number}))
                return Frame({"told": 3})
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return Frame({})


def played(folder: Path, scene: Callable[[Desk, Answering, Caller], Awaitable[Any]], largest: int = 1 << 20) -> Any:
    async def play() -> Any:
        desk = Desk()
        server, caller = Answering(desk.handle, largest=largest), Caller(str(folder / "s"))
        await server.listen(listen(folder / "s"))
        try:
            async with asyncio.timeout(SECONDS):
                return await scene(desk, server, caller)
        finally:
            caller.close()
            await server.close()

    return asyncio.run(play())


def test_many_calls_share_a_connection_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    async def scene(desk: Desk, server: Answering, caller: Caller) -> None:
        arrays = [np.arange(n, dtype=np.int32) for n in range(50)]
        asked = (caller.call(Frame({"verb": "double", "of": n}, {"x": x})) for n, x in enumerate(arrays))
        for number, answer in enumerate(await asyncio.gather(*asked)):
            assert answer.header["of"] == number and answer.arrays["x"].tolist() == [2 * n for n in range(number)]

    played(tmp_path, scene)


def test_a_refusal_is_one_sentence_and_news_come_before_the_answer(tmp_path: Path) -> None:
    async def scene(desk: Desk, server: Answering, caller: Caller) -> None:
        with pytest.raises(EtudeError, match="not today"):
            await caller.call(Frame({"verb": "refuse"}))
        heard: list[int] = []
        answer = await caller.call(Frame({"verb": "tell"}), on_news=lambda frame: heard.append(frame.header["part"]))
        assert heard == [0, 1, 2] and answer.header["told"] == 3

    played(tmp_path, scene)


def test_news_of_several_calls_come_in_one_frame_and_each_caller_hears_its_own() -> None:
    news = [
        (3, Frame({"message": {"of": 3}}, {"x": np.arange(2, dtype=np.int32), "y": np.ones(1)})),
        (9, Frame({"message": {"of": 9}}, {"x": np.arange(5, dtype=np.int32), "y": np.zeros(0)})),
    ]
    (joint,) = joined_news(news)
    data = write_frame(joint)
    header, body = read_prefix(data[:PREFIX_BYTES])
    found = split_news(read_frame(data[PREFIX_BYTES : PREFIX_BYTES + header], data[-body:]))
    assert [number for number, _ in found] == [3, 9]
    for (_, sent), (_, heard) in zip(news, found, strict=True):
        assert heard.header["message"] == sent.header["message"] and heard.header["news"]
        assert {name: array.tolist() for name, array in heard.arrays.items()} == {
            name: array.tolist() for name, array in sent.arrays.items()
        }
    other = (4, Frame({"part": 0}))
    assert [frame.header["number"] for frame in joined_news([news[0], other])] == [3, 4]  # they are not alike
    for broken in ({"numbers": [1]}, {"numbers": [1], "headers": [{}], "ends": {"z": [1]}}, {"numbers": 5}):
        with pytest.raises(EtudeError, match="cannot be told apart"):
            split_news(Frame(broken))


def test_one_that_is_about_to_end_counts_as_gone_and_an_answer_that_cannot_be_sent_is_said(tmp_path: Path) -> None:
    async def scene(desk: Desk, server: Answering, caller: Caller) -> None:
        with pytest.raises(ConnectionLost, match="it is about to end"):
            await caller.call(Frame({"verb": "end"}))
        with pytest.raises(EtudeError, match="its answer cannot be sent: Object of type object") as said:
            await caller.call(Frame({"verb": "unsendable"}))
        assert not isinstance(said.value, ConnectionLost)

    played(tmp_path, scene)


def test_a_cancelled_call_is_cancelled_on_the_other_side(tmp_path: Path) -> None:
    async def scene(desk: Desk, server: Answering, caller: Caller) -> None:
        call = asyncio.ensure_future(caller.call(Frame({"verb": "wait"})))
        await desk.began.wait()
        call.cancel()
        await desk.cancelled.wait()
        with pytest.raises(TimeoutError):
            await caller.call(Frame({"verb": "wait"}), deadline=0.01)

    played(tmp_path, scene)


def test_a_server_that_goes_away_is_told_to_all_who_wait_and_found_again(tmp_path: Path) -> None:
    async def scene(desk: Desk, server: Answering, caller: Caller) -> None:
        call = asyncio.ensure_future(caller.call(Frame({"verb": "wait"})))
        await desk.began.wait()
        await server.close()
        with pytest.raises(ConnectionLost):
            await call
        await desk.cancelled.wait()
        with pytest.raises(ConnectionLost, match="nobody answers"):
            await caller.call(Frame({"verb": "tell"}))
        second = Answering(desk.handle)
        await second.listen(listen(tmp_path / "s"))
        assert (await caller.call(Frame({"verb": "tell"}))).header["told"] == 3
        await second.close()

    played(tmp_path, scene)


def test_a_frame_that_is_too_large_ends_the_connection_before_it_is_read(tmp_path: Path) -> None:
    async def scene(desk: Desk, server: Answering, caller: Caller) -> None:
        with pytest.raises(ConnectionLost):
            await caller.call(Frame({"verb": "double", "of": 0}, {"x": np.zeros(5000, np.int32)}))

    played(tmp_path, scene, largest=10_000)


SECRET = SharedSecret(b"a secret of these tests", "the desk")


@asynccontextmanager
async def guarded(path: Path, tcp: bool) -> AsyncIterator[tuple[Desk, str]]:
    """A server that asks for a proof, and where it is."""
    desk = Desk()
    server = Answering(desk.handle)
    listener = sockets.create_server(("127.0.0.1", 0)) if tcp else listen(path)
    place = f"127.0.0.1:{listener.getsockname()[1]}" if tcp else str(path)
    await server.listen(listener, SECRET)
    async with asyncio.timeout(SECONDS):
        yield desk, place
    await server.close()


async def stranger(place: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if "/" in place:
        return await asyncio.open_unix_connection(place)
    return await asyncio.open_connection(*place.split(":"))


@pytest.mark.parametrize("tcp", [False, True])
def test_who_proves_the_secret_is_answered_and_a_wrong_one_is_named(tmp_path: Path, tcp: bool) -> None:
    async def play() -> None:
        async with guarded(tmp_path / "s", tcp) as (_, place):
            caller = Caller(place, secret=SECRET)
            assert (await caller.call(Frame({"verb": "tell"}))).header["told"] == 3
            caller.close()
            for wrong in (replace(SECRET, key=b"another"), replace(SECRET, purpose="another desk")):
                with pytest.raises(ConnectionLost, match="has another token, or is not"):
                    await Caller(place, secret=wrong).call(Frame({"verb": "tell"}))

    asyncio.run(play())


def test_what_was_heard_of_a_connection_opens_no_other(tmp_path: Path) -> None:
    async def play() -> None:
        async with guarded(tmp_path / "s", tcp=False) as (_, place):
            sent, answered = bytearray(), bytearray()

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                inner_reader, inner_writer = await stranger(place)

                async def pass_on(source: asyncio.StreamReader, to: asyncio.StreamWriter, heard: bytearray) -> None:
                    while data := await source.read(1 << 16):
                        heard.extend(data)
                        to.write(data)
                    to.close()

                await asyncio.gather(pass_on(reader, inner_writer, sent), pass_on(inner_reader, writer, answered))

            async with await asyncio.start_unix_server(relay, tmp_path / "relay"):
                caller = Caller(str(tmp_path / "relay"), secret=SECRET)
                await caller.call(Frame({"verb": "tell"}))
                caller.close()
            assert SECRET.key not in sent + answered
            # To the server: what a client sent, a challenge and a proof.
            reader, writer = await stranger(place)
            writer.write(sent[:64])
            assert len(await reader.read()) == 32  # a challenge, and no more
            writer.close()

            # To a client: everything that the server sent.
            async def replay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(answered)

            async with await asyncio.start_unix_server(replay, tmp_path / "replay"):
                with pytest.raises(ConnectionLost, match="is not the desk"):
                    await Caller(str(tmp_path / "replay"), secret=SECRET).call(Frame({"verb": "tell"}))

    asyncio.run(play())


def test_a_server_that_never_speaks_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.core.tcp_address.GREETING", 0.01)

    async def play() -> None:
        with listen(tmp_path / "s"), pytest.raises(ConnectionLost, match="too slow"):
            await Caller(str(tmp_path / "s"), secret=SECRET).call(Frame({"verb": "tell"}))

    asyncio.run(play())


@pytest.mark.parametrize("tcp", [False, True])
def test_strangers_who_say_nothing_are_few_and_keep_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tcp: bool
) -> None:
    monkeypatch.setattr("etude.core.frame_calls.UNPROVEN", 4)

    async def play() -> None:
        async with guarded(tmp_path / "s", tcp) as (_, place):
            strangers = [await stranger(place) for _ in range(10)]
            for reader, _ in strangers[:6]:
                await reader.read()  # closed, long before their time is over
            caller = Caller(place, secret=SECRET)
            assert (await caller.call(Frame({"verb": "tell"}))).header["told"] == 3
            for _, writer in strangers:
                writer.close()
            caller.close()

    asyncio.run(play())


def test_frames_of_one_turn_are_written_at_once_and_before_the_end() -> None:
    class Wire(asyncio.Transport):
        def __init__(self) -> None:
            super().__init__()
            self.written: list[bytes] = []
            self.closed = False

        def write(self, data: bytes | bytearray | memoryview) -> None:
            assert not self.closed
            self.written.append(bytes(data))

        def is_closing(self) -> bool:
            return self.closed

        def close(self) -> None:
            self.closed = True

    async def work() -> None:
        link, wire = _Frames(lambda frame: None, lambda why: None, 1 << 20), Wire()
        link.connection_made(wire)
        first, second, third = (Frame({"number": number}) for number in range(3))
        link.send(first)
        link.send(second)
        await asyncio.sleep(0)
        link.send(third)
        link.end()
        assert wire.written == [write_frame(first) + write_frame(second), write_frame(third)] and wire.closed
        await asyncio.sleep(0)  # what was left to do finds nothing

    asyncio.run(work())

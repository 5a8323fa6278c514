"""One tool call of an agent is one round trip to the sandbox host that its sandbox is on."""

from __future__ import annotations

from typing import Any

import pytest

from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.table import build_tools
from etude.sandbox.remote.host import RemoteHost
from etude.sandbox.replace_text import replace_text

World = Any

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("read", {"path": "hello.py"}),
    ("write", {"path": "new/file.txt", "text": "one\r\ntwo\r\n"}),
    ("edit", {"path": "hello.py", "old": "hello", "new": "bye"}),
    ("grep", {"pattern": "VALUE"}),
    ("glob", {"pattern": "*.py"}),
    ("list", {}),
    ("delete", {"path": "data.bin"}),
    ("run", {"command": "cd src && cat module.py"}),
]


def test_each_tool_is_one_round_trip(remote: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    assert isinstance(remote.host, RemoteHost)
    (machine,) = remote.host.machines
    real = machine.call

    async def counted(verb: str, *given: Any) -> Any:
        asked.append(verb)
        return await real(verb, *given)

    async def go() -> dict[str, list[str]]:
        async with await remote.host.start([remote.layer]) as sandbox:
            context = ToolContext(sandbox)
            monkeypatch.setattr(machine, "call", counted)
            found = {}
            tools = build_tools([{"use": name} for name, _ in CALLS])
            for name, arguments in CALLS:
                asked.clear()
                await tools[name].call(arguments, context)
                found[name] = [verb for verb in asked if verb != "beat"]
            monkeypatch.undo()
            assert await sandbox.read("hello.py") == b"print('bye')\n"
            return found

    found = remote.run(go())
    assert {name: len(verbs) for name, verbs in found.items()} == dict.fromkeys(found, 1), found


def test_a_piece_is_replaced_only_where_it_is_once(world: World) -> None:
    async def go() -> None:
        async with await world.host.start([world.layer]) as sandbox:
            await sandbox.write("a", b"aaa b\r\nc")
            assert await replace_text(sandbox, "a", b"b\r\n", b"d", most=100) is None
            assert await sandbox.read("a") == b"aaa dc"
            for old, most, given in ((b"aa", 100, b"aaa dc"), (b"z", 100, b"aaa dc"), (b"d", 2, b"aaa")):
                assert await replace_text(sandbox, "a", old, b"x", most=most) == given
            await sandbox.write("b", b"\0once")
            assert await replace_text(sandbox, "b", b"once", b"x", most=100) == b"\0once"
            assert await sandbox.read("a") == b"aaa dc" and await sandbox.read("b") == b"\0once"
            with pytest.raises(FileNotFoundError):
                await replace_text(sandbox, "none", b"a", b"b", most=100)

    world.run(go())


def test_an_edit_keeps_line_ends_and_says_what_is_there_instead(remote: World) -> None:
    edit = build_tools([{"use": "edit"}])["edit"]

    async def go() -> None:
        async with await remote.host.start([remote.layer]) as sandbox:
            context = ToolContext(sandbox)
            await sandbox.write("crlf", b"one\r\ntwo\r\n")
            await edit.call({"path": "crlf", "old": "one\ntwo", "new": "1\n2"}, context)
            assert await sandbox.read("crlf") == b"1\r\n2\r\n"
            with pytest.raises(ToolError, match=r"old is not in hello\.py; nearest, line 1"):
                await edit.call({"path": "hello.py", "old": "print('hallo')", "new": ""}, context)
            with pytest.raises(ToolError, match="occurs 2 times"):
                await edit.call({"path": "hello.py", "old": "l", "new": ""}, context)

    remote.run(go())

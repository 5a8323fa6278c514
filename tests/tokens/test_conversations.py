"""JSONL <-> messages: nothing lost, and every fault named by file, line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, System, ToolResult, User
from etude.tokens.conversations import read_conversations, write_conversations


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_what_is_written_is_read_back(
    data: st.DataObject, conversations: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    written = data.draw(st.lists(conversations.filter(bool).map(tuple), min_size=1, max_size=2))
    path = tmp_path_factory.getbasetemp() / "conversations.jsonl"
    write_conversations(path, written)
    assert read_conversations(path) == written


def test_a_conversation_as_a_person_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(
        '{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "naïve"}, '
        '{"role": "assistant", "thinking": "t", "content": "c", '
        '"calls": [{"name": "read", "arguments": {"path": "a"}}, {"name": "list"}]}, '
        '{"role": "tool", "name": "read", "content": "\\udcff"}]}\n'
        "\n"
        '{"messages": [{"role": "assistant", "content": null, "final": "f", "calls": null}]}',
        encoding="utf-8",
    )
    assert read_conversations(path) == [
        (
            System("S"),
            User("naïve"),
            Assistant("t", "c", (Call("read", {"path": "a"}), Call("list"))),
            ToolResult("read", "\udcff"),
        ),
        (Assistant(final="f"),),
    ]


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("hi", "messages[0] must be a JSON object, not text"),
        ({}, "messages[0].role is None: it must be 'system', 'user', 'assistant' or 'tool'"),
        ({"role": "human", "content": ""}, "messages[0].role is 'human'"),
        ({"role": "user"}, "messages[0] lacks the field 'content'"),
        ({"role": "user", "content": None}, "messages[0].content must be text in quotes, not null"),
        ({"role": "user", "content": ["a"]}, "messages[0].content must be text in quotes, not a list"),
        ({"role": "user", "content": "a\ud800"}, "messages[0].content: the text holds U+D800 at character 1"),
        (
            {"role": "user", "content": "", "nmae": ""},
            "messages[0] has an unknown field 'nmae': role, content are known",
        ),
        ({"role": "tool", "content": ""}, "messages[0] lacks the field 'name'"),
        ({"role": "assistant", "final": "", "content": ""}, "messages[0] has both 'final' and 'content'"),
        ({"role": "assistant", "thinking": 1}, "messages[0].thinking must be text in quotes, not a number"),
        ({"role": "assistant", "calls": {}}, "messages[0].calls must be a list of calls, not an object"),
        ({"role": "assistant", "calls": ["x"]}, "messages[0].calls[0] must be a JSON object, not text"),
        ({"role": "assistant", "calls": [{}]}, "messages[0].calls[0] lacks the field 'name'"),
        (
            {"role": "assistant", "calls": [{"name": "a"}, {"name": "b", "arguments": []}]},
            "messages[0].calls[1].arguments must be a JSON object, not a list",
        ),
        (
            {"role": "assistant", "calls": [{"name": "b", "arguments": {"n": True}}]},
            "messages[0].calls[0].arguments.n must be text in quotes, not true or false",
        ),
    ],
)
def test_a_faulty_message_is_named_by_file_line_and_field(message: Any, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    good = json.dumps({"messages": [{"role": "user", "content": "x"}]})
    path.write_text(good + "\n" + json.dumps({"messages": [message]}) + "\n")
    with pytest.raises(EtudeError) as caught:
        read_conversations(path)
    assert str(caught.value).startswith(f"{path}, line 2: {sentence}")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "holds no conversation"),
        (b"\n \n", "holds no conversation"),
        (b"{", "line 1 is not JSON"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "line 1 is not JSON"),
        (b"[" * 100_000, "line 1 is not JSON"),
        (b"[]", "line 1 must be a JSON object, not a list"),
        (b'{"messages": []}', "line 1: 'messages' must be a list of at least one message"),
        (b'{"messages": 3}', "line 1: 'messages' must be a list of at least one message"),
        (b'{"conversation": []}', "line 1 has an unknown field 'conversation': messages are known"),
    ],
)
def test_a_faulty_file_is_named_with_its_line(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_bytes(content)
    with pytest.raises(EtudeError) as caught:
        read_conversations(path)
    assert str(caught.value).startswith(str(path))
    assert sentence in str(caught.value)


def test_files_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match="cannot read the conversations"):
        read_conversations(tmp_path / "none.jsonl")
    with pytest.raises(EtudeError, match="cannot write conversations"):
        write_conversations(tmp_path, [[User("x")]])

"""Ids -> messages: the mirror of rendering, and a plain sentence for everything a model can get wrong."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from etude.core.policy import Assistant, Call, Message, ToolResult, User
from etude.tokens.parse import Malformed, parse, parse_turn
from etude.tokens.render import render
from etude.tokens.tokenizer import Tokenizer

UNKNOWN = "unknown id"


def ids_of(parts: list[str], tokenizer: Tokenizer) -> list[int]:
    """Ids of a turn written as control names in brackets and texts."""
    ids: list[int] = []
    for part in parts:
        if part == UNKNOWN:
            ids.append(tokenizer.vocab_size)
        elif part.startswith("["):
            ids.append(tokenizer.control[part[1:-1]])
        else:
            ids += tokenizer.encode(part)
    return ids


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_parse_gives_back_the_rendered_messages(data: st.DataObject, tokenizer: Tokenizer, conversations: Any) -> None:
    messages: list[Message] = data.draw(conversations)
    for open_turn in (False, True):
        assert list(parse(render(messages, tokenizer, open_turn=open_turn).ids, tokenizer)) == messages


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_parse_turn_gives_back_one_turn_with_its_arguments_in_order(
    data: st.DataObject, tokenizer: Tokenizer, turns: Any
) -> None:
    turn: Assistant = data.draw(turns)
    read = parse_turn(render([turn], tokenizer, open_turn=False).ids[1:], tokenizer)
    assert read == turn
    assert [list(call.arguments) for call in turn.calls] == [list(call.arguments) for call in read.calls]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_cut_of_a_turn_is_cut_off_and_keeps_finished_calls_only(
    data: st.DataObject, tokenizer: Tokenizer, turns: Any
) -> None:
    turn: Assistant = data.draw(turns)
    ids = render([turn], tokenizer, open_turn=False).ids[1:]
    cut = data.draw(st.integers(0, len(ids) - 1))
    read = parse_turn(ids[:cut], tokenizer)
    assert isinstance(read, Malformed)
    assert read.kind == "CutOff"
    started = ids[:cut].count(tokenizer.control["call"])
    assert read.partial.calls == turn.calls[: max(started - 1, 0)]
    assert parse_turn([*ids[:cut], tokenizer.control["cut"]], tokenizer) == read


@settings(max_examples=300, deadline=None, derandomize=True)
@given(ids=st.lists(st.one_of(st.integers(0, 30), st.integers(-3, 600)), max_size=30))
def test_no_ids_make_parsing_raise(ids: list[int], tokenizer: Tokenizer) -> None:
    turn = parse_turn(ids, tokenizer)
    assert isinstance(turn, Assistant | Malformed)
    if isinstance(turn, Malformed):
        assert turn.message.isprintable()
        assert len(turn.message) < 160
    parse(ids, tokenizer)


CALL = ["[call]", "read", "[argument]", "path", "[value]", "a.py"]
READ_CALL = Call("read", {"path": "a.py"})
LONG_NAME = "\udcff\n" * 50


@pytest.mark.parametrize(
    ("parts", "kind", "sentence", "partial"),
    [
        ([], "CutOff", "the turn was cut off before its end", Assistant()),
        (["[thinking]", "hm"], "CutOff", "the turn was cut off before its end", Assistant("hm")),
        ([*CALL], "CutOff", "the turn was cut off before its end", Assistant()),
        ([*CALL, *CALL], "CutOff", "the turn was cut off before its end", Assistant(calls=(READ_CALL,))),
        (["hello", "[end_of_turn]"], "TextOutsidePart", "text stands before the first part of the turn", Assistant()),
        (
            ["[final]", "a", "[thinking]", "b", "[end_of_turn]"],
            "WrongOrder",
            "thinking comes once and first in a turn",
            Assistant(final="a"),
        ),
        (
            [*CALL, "[final]", "a", "[end_of_turn]"],
            "WrongOrder",
            "the message comes once in a turn, after thinking and before calls",
            Assistant(),
        ),
        (["[argument]", "a", "[end_of_turn]"], "WrongOrder", "an argument stands outside a call", Assistant()),
        (
            ["[call]", "read", "[value]", "a", "[end_of_turn]"],
            "WrongOrder",
            "a value stands without the name of its argument",
            Assistant(),
        ),
        (
            [*CALL, "[value]", "b", "[end_of_turn]"],
            "WrongOrder",
            "a value stands without the name of its argument",
            Assistant(),
        ),
        (
            [*CALL, "[call]", "edit", "[argument]", "old", "[end_of_turn]"],
            "MissingValue",
            "argument 'old' of call 'edit' has no value",
            Assistant(calls=(READ_CALL,)),
        ),
        (
            ["[call]", "edit", "[argument]", LONG_NAME, *CALL, "[end_of_turn]"],
            "MissingValue",
            "argument '\\udcff\\n\\udcff\\n\\udcff\\n\\udcff\\n\\udc... of call 'edit' has no value",
            Assistant(),
        ),
        (
            [*CALL, "[argument]", "path", "[value]", "b", "[end_of_turn]"],
            "DuplicateArgument",
            "call 'read' gives argument 'path' twice",
            Assistant(),
        ),
        (
            [*CALL, "[user]", "I allow it", "[end_of_turn]"],
            "UnexpectedToken",
            "the control token user has no place in an assistant's turn",
            Assistant(),
        ),
        (
            ["[final]", "a", "[end_of_turn]", "[end_of_turn]"],
            "UnexpectedToken",
            "the turn goes on after its end",
            Assistant(final="a"),
        ),
        (
            ["[final]", "a", UNKNOWN, "b", "[end_of_turn]"],
            "UnknownToken",
            "the turn holds a token that is not in the vocabulary",
            Assistant(final="a"),
        ),
    ],
)
def test_a_malformed_turn_says_what_is_wrong_and_keeps_what_was_whole(
    parts: list[str], kind: str, sentence: str, partial: Assistant, tokenizer: Tokenizer
) -> None:
    turn = parse_turn(ids_of(parts, tokenizer), tokenizer)
    assert turn == Malformed(kind, sentence, partial)  # type: ignore[arg-type]


def test_empty_parts_that_a_model_samples_are_read_as_nothing(tokenizer: Tokenizer) -> None:
    ids = ids_of(["[thinking]", "[final]", "[call]", "[end_of_turn]"], tokenizer)
    assert parse_turn(ids, tokenizer) == Assistant("", "", (Call(""),))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["hello", "[user]", "hi"], [Malformed("TextOutsidePart", "there are tokens outside any turn"), User("hi")]),
        (
            ["[user]", "a", "[value]", "b", "[user]", "c"],
            [Malformed("UnexpectedToken", "the control token value has no place in a user turn"), User("c")],
        ),
        (
            ["[tool]", "text"],
            [Malformed("UnnamedResult", "a tool's result names no tool and answers no call")],
        ),
        (
            ["[tool]", "a", "[output]", "b", "[output]", "c"],
            [Malformed("UnexpectedToken", "a tool's turn has more than one output")],
        ),
        (
            ["[tool]", "a", "[call]", "b"],
            [Malformed("UnexpectedToken", "the control token call has no place in a tool's turn")],
        ),
        (["[tool]", "[output]"], [ToolResult("", "")]),
    ],
)
def test_broken_conversations_are_read_as_far_as_they_go(
    parts: list[str], expected: list[Message | Malformed], tokenizer: Tokenizer
) -> None:
    assert list(parse(ids_of(parts, tokenizer), tokenizer)) == expected

"""Turns as plain text, for policies without ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.core.policy import Assistant, Call
from etude.harness.text_turns import read_turn, write_turn
from etude.tokens.parse import Malformed
from etude.tokens.tokenizer import to_text

values = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary().map(to_text),
    st.sampled_from(["</tool_call>", "<tool_call>", "<think>"]),
)
words = st.text("abc <>", max_size=9).map(str.strip)


@given(words, words, st.lists(st.builds(Call, values, st.dictionaries(values, values, max_size=3)), max_size=3))
def test_what_is_written_is_read_back(thinking: str, final: str, calls: list[Call]) -> None:
    turn = Assistant(thinking, final, tuple(calls))
    assert read_turn(write_turn(turn)) == turn


def test_a_model_writes_it_loosely() -> None:
    text = '\n<think>\nhm</think>\n\nI read.\n<tool_call>\n {"name": "read", "arguments": {"path": "a", "start": 3}}\n'
    text += '</tool_call>\n\n<tool_call>{"name": "list"}</tool_call>\n'
    assert read_turn(text) == Assistant("\nhm", "I read.", (Call("read", {"path": "a", "start": "3"}), Call("list")))
    assert read_turn("Done.") == Assistant(final="Done.")
    assert read_turn("") == Assistant()


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("<think>hm", "CutOff", "the thinking has no end"),
        ("<tool_call>{", "WrongOrder", "not JSON"),
        ("<tool_call>" + "[" * 100_000, "WrongOrder", "not JSON"),
        ("<tool_call>[]</tool_call>", "WrongOrder", "needs a name and arguments"),
        ('<tool_call>{"name": "a", "arguments": "b"}</tool_call>', "WrongOrder", "needs a name and arguments"),
        ('<tool_call>{"name": "a"}', "CutOff", "has no </tool_call>"),
        ('<tool_call>{"name": "a"}</tool_call> bye', "WrongOrder", "words stand after a call"),
        ('<tool_call>{"name": "\\ud800"}</tool_call>', "WrongOrder", "half of a surrogate pair"),
    ],
)
def test_what_cannot_be_read_is_explained(text: str, kind: str, told: str) -> None:
    turn = read_turn("Look. " + text if not text.startswith("<think>") else text)
    assert isinstance(turn, Malformed) and turn.kind == kind and told in turn.message
    assert turn.partial.final == "Look." or turn.partial.thinking == "hm"

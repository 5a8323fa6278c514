"""What clients read of sampled ids: the same text, thinking and calls, however the ids arrive."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.policy import Assistant, Call, User
from etude.serve.openai.errors import ApiError
from etude.serve.openai.prompts import Prompts
from etude.serve.openai.request_models import request_models
from etude.serve.openai.steering import call_opening
from etude.serve.openai.streaming import Delta, Reader, TextReader, TurnReader, find_stop, without_begun
from etude.serve.openai.validation import read_chat
from etude.tokens.dialect import Dialect, open_dialect
from etude.tokens.native import Native
from etude.tokens.parse import Malformed
from etude.tokens.tokenizer import Tokenizer

TEXTS = ["Hello, wörld! € 🎉 done", "def f(x):\n    return x < 3\n", "naïve <b>\n\n"]
CALLS = (Call("read", {"path": "a.py"}), Call("run", {"command": "ls <tool_call>"}))
TURNS = [
    Assistant("think € hard", "Say 🎉 it.\n", CALLS),
    Assistant("", "only words, a < b"),
    Assistant("only thoughts\n", ""),
    Assistant("", "", CALLS[:1]),
    Assistant("", "so a < b", CALLS[:1]),
]


@pytest.fixture(scope="session")
def native() -> Dialect:
    return Native(Tokenizer.train(TEXTS, 300))


def read(reader: Reader, ids: Sequence[int], sizes: Sequence[int]) -> tuple[Delta, int]:
    """All that a reader tells when ids come in pieces of these sizes, over and over; and the ids that count."""
    told, at, number = Delta(), 0, 0
    deltas = []
    while at < len(ids) and not reader.stopped:
        size = sizes[number % len(sizes)]
        deltas.append(reader.take(ids[at : at + size]))
        at, number = at + size, number + 1
    if not reader.stopped:
        deltas.append(reader.end())
    for delta in deltas:
        delta.text.encode()  # never half of a character
        delta.thinking.encode()
        assert not (told.calls and delta.text)  # a client has closed the words by then
        told = Delta(told.text + delta.text, told.thinking + delta.thinking, told.calls + delta.calls)
    return told, reader.used


@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_text_does_not_depend_on_how_ids_arrive(native: Dialect, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, native.vocab_size + 3), max_size=40))
    stops = data.draw(st.lists(st.text("eol d�", min_size=1, max_size=3), max_size=4))
    sizes = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    told = read(TextReader(native, stops), ids, sizes)
    assert told == read(TextReader(native, stops), ids, [1])
    known = [token for token in ids if token < native.vocab_size]
    whole = b"".join(map(native.bytes_of, known)).decode("utf-8", "replace")
    place = find_stop(whole, stops)
    assert told[0].text == (whole if place is None else whole[:place])
    assert (told[1] == len(ids)) or place is not None


@given(data=st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_turns_do_not_depend_on_how_ids_arrive(native: Dialect, data: st.DataObject) -> None:
    """Also not turns that are broken, which is what a model that learns samples."""
    ids = data.draw(st.one_of(st.sampled_from(TURNS).map(native.turn_ids), st.lists(st.integers(0, 299), max_size=40)))
    stops = data.draw(st.lists(st.text("SayHelo d\n", min_size=1, max_size=3), max_size=2))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    told = read(TurnReader(native, stops, calls=8), ids, sizes)
    assert told == read(TurnReader(native, stops, calls=8), ids, [1])
    assert told == read(TurnReader(native, stops, calls=8), ids, [len(ids) or 1])


@pytest.mark.parametrize("name", ["native", "hermes", "qwen3", "deepseek", "kimi"])
@pytest.mark.parametrize("turn", TURNS)
def test_a_streamed_turn_is_the_parsed_one_in_every_dialect(
    native: Dialect, template_models: dict[str, Path], name: str, turn: Assistant
) -> None:
    dialect = native if name == "native" else open_dialect(template_models[name])
    ids = dialect.turn_ids(turn, [User("?")])
    parsed = dialect.parse_turn(ids)
    assert isinstance(parsed, Assistant), parsed
    for sizes in ([1], [3, 1, 2], [len(ids)]):
        told, used = read(TurnReader(dialect, (), calls=8), ids, sizes)
        assert (told.thinking, told.text, tuple(told.calls)) == (parsed.thinking, parsed.final, parsed.calls)
        assert used == len(ids)


@pytest.mark.parametrize("name", ["native", "hermes", "qwen3", "deepseek", "kimi"])
def test_what_forces_a_call_is_the_beginning_of_every_call(
    native: Dialect, template_models: dict[str, Path], name: str
) -> None:
    dialect = native if name == "native" else open_dialect(template_models[name])
    opening = call_opening(dialect)
    ids = dialect.turn_ids(Assistant(calls=CALLS[:1]), [User("?")])
    assert ids[: len(opening)] == opening
    assert 0 < len(opening) < len(ids)
    told, used = read(TurnReader(dialect, (), opening, calls=8), ids[len(opening) :], [2])
    assert told.calls == list(CALLS[:1])
    assert used == len(ids) - len(opening)


@pytest.mark.parametrize("name", ["native", "hermes", "qwen3", "deepseek", "kimi"])
def test_messages_and_tools_reach_the_prompt_of_every_dialect(
    native: Dialect, template_models: dict[str, Path], name: str
) -> None:
    dialect = native if name == "native" else open_dialect(template_models[name])
    call = {"id": "functions.read:0", "type": "function", "function": {"name": "read", "arguments": '{"n": 3}'}}
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "read it"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "functions.read:0", "content": "found"},
            {"role": "user", "content": "so?"},
        ],
        "tools": [{"type": "function", "function": {"name": "read", "description": "Reads lines."}}],
    }
    ids = Prompts(dialect, 2000).of_chat(read_chat(body, request_models("m", 1000)[0]))
    text = dialect.decode(ids)
    for said in ("be kind", "read it", "read", "3", "found", "so?"):
        assert said in text
    assert ("Reads lines." in text) == dialect.shows_tools
    with pytest.raises(ApiError, match=r"maximum context length is 9 tokens.*9999 characters"):
        Prompts(dialect, 9).of_chat(
            read_chat(body | {"messages": [{"role": "user", "content": "x" * 9999}]}, request_models("m", 9)[0])
        )


def test_a_stop_text_ends_the_answer_at_the_token_that_completes_it(native: Dialect) -> None:
    ids = native.turn_ids(Assistant("stop here", "one two stop three", CALLS))
    for sizes in ([1], [5], [100]):
        told, used = read(TurnReader(native, ("zz", "two st"), calls=8), ids, sizes)
        assert (told.thinking, told.text, told.calls) == ("stop here", "one ", [])
        assert native.decode(ids[:used]).endswith("st") or native.decode(ids[:used]).endswith("stop")
        shorter = native.parse_turn(ids[: used - 1])
        assert isinstance(shorter, Malformed)
        assert "two st" not in shorter.partial.final


def test_only_as_many_calls_are_told_as_the_request_allows(native: Dialect) -> None:
    ids = native.turn_ids(TURNS[0])
    for most in (0, 1, 2):
        assert read(TurnReader(native, (), calls=most), ids, [3])[0].calls == list(CALLS[:most])


def test_a_model_that_never_learnt_the_format_is_heard_all_the_same(native: Dialect) -> None:
    ids = native.encode("just text")
    assert read(TurnReader(native, ()), ids, [2])[0].text == "just text"
    assert read(TurnReader(native, ("t t",)), ids, [2])[0].text == "jus"


def test_the_stop_text_that_is_complete_first_counts() -> None:
    assert find_stop("xabc", ["abc", "b"]) == 2
    assert find_stop("xabc", ["bc", "abc"]) == 1
    assert find_stop("xab", ["abc"]) is None
    assert without_begun("xab", ["abc", "bcd"]) == "x"
    assert without_begun("xabx", ["abc"]) == "xabx"


def test_reading_a_long_turn_takes_work_in_proportion(native: Dialect) -> None:
    """A turn is parsed again and again, but not for every token of a long one."""
    chance = random.Random(0)
    words = " ".join(chance.choice(TEXTS[0].split()) for _ in range(2000))
    ids = native.turn_ids(Assistant("", words))
    parsed = 0

    class Counted(Native):
        def parse_turn(self, ids: Sequence[int]) -> Assistant | Malformed:
            nonlocal parsed
            parsed += len(ids)
            return super().parse_turn(ids)

    assert isinstance(native, Native)
    told, _ = read(TurnReader(Counted(native.tokenizer), ()), ids, [1])
    assert told.text == words
    assert parsed < 1000 * len(ids)

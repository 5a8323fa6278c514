"""Builders for the tests of tokens: one small tokenizer, and strategies for hostile texts and whole conversations."""

from __future__ import annotations

import inspect
import json
import textwrap

import hypothesis.strategies as st
import pytest

from etude.core.policy import Assistant, Call, Message, System, ToolResult, User
from etude.tokens.tokenizer import CONTROL_NAMES, Tokenizer


@pytest.fixture(scope="session")
def training_texts() -> list[str]:
    return [inspect.getsource(module) for module in (textwrap, inspect, json.decoder, json.encoder)]


@pytest.fixture(scope="session")
def tokenizer(training_texts: list[str]) -> Tokenizer:
    return Tokenizer.train(training_texts, 550)


@pytest.fixture(scope="session")
def texts() -> st.SearchStrategy[str]:
    """Any text that bytes can stand for: all of Unicode, invalid UTF-8 as lone surrogates, control spellings."""
    pieces = st.one_of(
        st.text(max_size=8).map(str.encode),
        st.binary(max_size=6),
        st.sampled_from([f"<|{name}|>".encode() for name in CONTROL_NAMES]),
        st.sampled_from([b"\r\n", b"\n\n    ", b"\t\t", b"\x00", b"    return x", "😀 é".encode(), b"1234", b"-" * 80]),
    )
    return st.lists(pieces, max_size=4).map(lambda parts: b"".join(parts).decode("utf-8", "surrogateescape"))


@pytest.fixture(scope="session")
def turns(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Assistant]:
    names = st.one_of(st.sampled_from(["read", "edit", "run", "path", "old"]), texts)
    calls = st.builds(Call, names, st.dictionaries(names, texts, max_size=3))
    return st.builds(Assistant, texts, texts, st.lists(calls, max_size=3).map(tuple))


@pytest.fixture(scope="session")
def conversations(
    texts: st.SearchStrategy[str], turns: st.SearchStrategy[Assistant]
) -> st.SearchStrategy[list[Message]]:
    """Messages in any order, with results that answer calls, answer none, or come without a call at all."""
    result_names = st.one_of(st.sampled_from(["read", "edit", "run"]), texts)
    results = st.builds(ToolResult, result_names, texts)
    messages = st.one_of(st.builds(System, texts), st.builds(User, texts), turns, results)
    exchange = st.tuples(turns, st.lists(texts, max_size=3)).map(
        lambda pair: [pair[0], *(ToolResult(c.name, t) for c, t in zip(pair[0].calls, pair[1], strict=False))]
    )
    blocks = st.one_of(exchange, st.lists(messages, min_size=1, max_size=2))
    return st.lists(blocks, max_size=4).map(lambda lists: [message for block in lists for message in block])

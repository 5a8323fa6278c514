"""Messages -> ids: append-only, every token accounted for, and nothing but structure is control tokens."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, System, ToolResult, User
from etude.tokens.parse import Malformed, parse, parse_turn
from etude.tokens.render import Rendered, append_sampled, extend, render, stop_ids
from etude.tokens.tokenizer import CONTROL_NAMES, Tokenizer

READ = Assistant(thinking="look", calls=(Call("read", {"path": "a.py"}), Call("run", {"command": "ls", "in": "x"})))


def drawn(ids: list[int], tokenizer: Tokenizer) -> str:
    """Ids as a person reads them: control tokens by name in brackets, text as it is."""
    return "".join(f"[{CONTROL_NAMES[i]}]" if tokenizer.is_control(i) else tokenizer.decode([i]) for i in ids)


def test_the_format_is_control_tokens_and_plain_text(tokenizer: Tokenizer) -> None:
    messages = [
        System("Be brief."),
        User("Fix a.py"),
        READ,
        ToolResult("read", "x = 1"),
        ToolResult("run", ""),
        Assistant(final="Done."),
    ]
    assert drawn(render(messages, tokenizer, open_turn=False).ids, tokenizer) == (
        "[system]Be brief.[user]Fix a.py"
        "[assistant][thinking]look[call]read[argument]path[value]a.py"
        "[call]run[argument]command[value]ls[argument]in[value]x[end_of_turn]"
        "[tool]x = 1[tool]"
        "[assistant][final]Done.[end_of_turn]"
    )


def test_a_result_that_answers_no_waiting_call_names_its_tool(tokenizer: Tokenizer) -> None:
    messages = [READ, ToolResult("run", "1"), ToolResult("read", "2"), User(""), ToolResult("run", "3")]
    rendered = render(messages, tokenizer, open_turn=True)
    assert drawn(rendered.ids, tokenizer).endswith("[tool]run[output]1[tool]2[user][tool]run[output]3[assistant]")
    assert list(parse(rendered.ids, tokenizer)) == messages


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_head_of_the_messages_renders_to_a_prefix(
    data: st.DataObject, tokenizer: Tokenizer, conversations: Any
) -> None:
    messages = data.draw(conversations)
    whole = render(messages, tokenizer, open_turn=True)
    for k in range(len(messages) + 1):
        continues = k == len(messages) or isinstance(messages[k], Assistant)
        head = render(messages[:k], tokenizer, open_turn=continues)
        assert whole.ids[: len(head.ids)] == head.ids
        assert whole.spans[: len(head.spans)] == head.spans
        extend(head, messages[k:], tokenizer, open_turn=True)
        assert head == whole


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_spans_partition_the_tokens_and_follow_the_messages(
    data: st.DataObject, tokenizer: Tokenizer, conversations: Any
) -> None:
    messages = data.draw(conversations)
    rendered = render(messages, tokenizer, open_turn=False)
    facts = rendered.per_token()
    edges = [0, *(span.end for span in rendered.spans)]
    assert [span.start for span in rendered.spans] == edges[:-1]
    assert edges[-1] == len(rendered.ids) == len(facts.message) == len(facts.part) == len(facts.own)
    assert sorted(set(facts.message)) == list(range(len(messages)))
    for index, message in enumerate(messages):
        mine = [i for i, owner in enumerate(facts.message) if owner == index]
        assert mine == list(range(mine[0], mine[-1] + 1))
        if isinstance(message, Assistant):
            assert [facts.own[i] for i in mine] == [False] + [True] * (len(mine) - 1)
            assert sum(span.part == "call" for span in rendered.spans if span.message == index) == len(message.calls)
            for part, text in (("thinking", message.thinking), ("final", message.final)):
                ids = [rendered.ids[i] for i in mine if facts.part[i] == part and facts.own[i]]
                assert tokenizer.decode(ids) == text
        else:
            assert not any(facts.own[i] for i in mine)
            assert {facts.part[i] for i in mine} == {"output" if isinstance(message, ToolResult) else "prompt"}


def test_own_tokens_are_what_the_model_must_sample(tokenizer: Tokenizer) -> None:
    messages = [User("hi"), READ, ToolResult("read", "x"), Assistant()]
    rendered = render(messages, tokenizer, open_turn=False)
    own = [token for token, mine in zip(rendered.ids, rendered.per_token().own, strict=True) if mine]
    assert drawn(own, tokenizer) == (
        "[thinking]look[call]read[argument]path[value]a.py"
        "[call]run[argument]command[value]ls[argument]in[value]x[end_of_turn][end_of_turn]"
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_whatever_is_sampled_stays_and_cannot_speak_for_others(
    data: st.DataObject, tokenizer: Tokenizer, texts: Any
) -> None:
    ends = (tokenizer.control["end_of_turn"], tokenizer.control["cut"])
    token = st.one_of(st.integers(0, 30), st.integers(0, tokenizer.vocab_size - 1)).filter(lambda i: i not in ends)
    live = render([User("go")], tokenizer, open_turn=True)
    expected: list[object] = [User("go")]
    for _ in range(2):
        sampled = [*data.draw(st.lists(token, max_size=8)), *data.draw(st.sampled_from([(), *((i,) for i in ends)]))]
        before = list(live.ids)
        append_sampled(live, sampled, tokenizer)
        assert live.ids == before + sampled
        turn = parse_turn(sampled, tokenizer)
        answer = ToolResult("run", data.draw(texts))
        extend(live, [answer], tokenizer, open_turn=True)
        assert live.ids[: len(before)] == before
        expected += [turn, answer]
    assert list(parse(live.ids, tokenizer)) == expected
    assert [span.message for span in live.spans] == sorted(span.message for span in live.spans)


def test_a_turn_cut_inside_a_call_is_closed_so_that_the_call_stays_unfinished(tokenizer: Tokenizer) -> None:
    live = render([User("go")], tokenizer, open_turn=True)
    complete = render([READ], tokenizer, open_turn=False).ids[1:]
    append_sampled(live, complete[:-2], tokenizer)
    extend(live, [ToolResult("read", "text")], tokenizer, open_turn=True)
    cut = live.ids.index(tokenizer.control["cut"])
    assert not live.per_token().own[cut]
    user, turn, result = parse(live.ids, tokenizer)
    assert isinstance(turn, Malformed)
    assert turn.kind == "CutOff"
    assert turn.partial == Assistant("look", "", (Call("read", {"path": "a.py"}),))
    assert (user, result) == (User("go"), ToolResult("read", "text"))


def test_stop_ids_end_a_turn_at_its_end_or_at_a_token_of_somebody_else(tokenizer: Tokenizer) -> None:
    names = {CONTROL_NAMES[i] for i in stop_ids(tokenizer)}
    assert names == set(CONTROL_NAMES) - {"thinking", "final", "call", "argument", "value"}


def test_opening_a_turn_twice_is_opening_it_once(tokenizer: Tokenizer) -> None:
    live = render([User("go")], tokenizer, open_turn=True)
    before = Rendered(list(live.ids), list(live.spans))
    extend(live, [], tokenizer, open_turn=True)
    assert live == before


def test_sampled_tokens_without_an_open_turn_or_beyond_its_end_are_refused(tokenizer: Tokenizer) -> None:
    end = tokenizer.control["end_of_turn"]
    for closed in (Rendered(), render([User("go")], tokenizer, open_turn=False)):
        with pytest.raises(EtudeError, match="need an open assistant turn"):
            append_sampled(closed, [end], tokenizer)
    live = render([User("go")], tokenizer, open_turn=True)
    with pytest.raises(EtudeError, match="go on after the end of their turn"):
        append_sampled(live, [end, end], tokenizer)

"""Tool-call formats: what a template writes is read back equal, and what a model gets wrong is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from etude.core.policy import Assistant, Call, User
from etude.tokens.dialect import ToolSchema
from etude.tokens.formats.table import FORMATS, detect_format
from etude.tokens.parse import Malformed
from etude.tokens.render import Rendered
from etude.tokens.template import TemplateDialect
from etude.tokens.template_messages import value_of

NAMES = ("qwen3", "hermes", "qwen_coder", "deepseek", "kimi", "kimi_thinking")
NUMBERS = ToolSchema(
    "count", "", {"type": "object", "properties": {"n": {"type": "integer"}, "b": {"type": "boolean"}}}
)

# Templates trim what stands at the edges of words and thinking, and tags cannot hold their own ends.
MARKS = [
    "<tool_call>",
    "</tool_call>",
    "<|im_end|>",
    "<｜tool▁sep｜>",
    "<|tool_call_end|>",
    '"}',
    "\\n",
    "{{",
    "\udcff",
]
WORDS = st.one_of(st.text(max_size=12), st.sampled_from(MARKS)).filter(lambda t: "\r" not in t)
EDGED = st.lists(WORDS, max_size=3).map("".join).map(str.strip).filter(lambda t: "think>" not in t)
ANY = st.lists(st.one_of(WORDS, st.sampled_from(["\n", " ", "</think>"])), max_size=4).map("".join)
KEYS = st.text("abcdefgh_", min_size=1, max_size=6)


def normal(text: str) -> str:
    """As the tokenizers of these tests see text: they normalise, as Qwen's does, and keep bytes apart."""
    import unicodedata

    try:
        text.encode()
    except UnicodeEncodeError:
        return text if text == "\udcff" else ""
    return unicodedata.normalize("NFC", text)


@pytest.fixture(scope="session")
def dialects(template_models: dict[str, Path]) -> dict[str, TemplateDialect]:
    return {name: TemplateDialect.open(path) for name, path in template_models.items()}


@pytest.fixture(scope="session")
def prompts(dialects: dict[str, TemplateDialect]) -> dict[str, Callable[[], Rendered]]:
    def fresh(name: str) -> Callable[[], Rendered]:
        rendered = Rendered()
        dialects[name].extend(rendered, [User("x")], open_turn=True, tools=[NUMBERS])
        return lambda: Rendered(list(rendered.ids), list(rendered.spans), rendered.state)

    return {name: fresh(name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_turn_that_is_written_is_read_back_equal(
    dialects: dict[str, TemplateDialect], prompts: dict[str, Callable[[], Rendered]], name: str, data: st.DataObject
) -> None:
    values = ANY.map(normal)
    if name == "qwen_coder":
        values = values.filter(lambda text: "parameter>" not in text and "function>" not in text)
    numbers = st.fixed_dictionaries(
        {"n": st.sampled_from(["1", "-7", "01", "1.0", "x", ""]), "b": st.sampled_from(["true", "True"])}
    )
    calls = st.one_of(
        st.builds(Call, KEYS, st.dictionaries(KEYS, values, max_size=3)), st.builds(Call, st.just("count"), numbers)
    )
    words = EDGED.map(normal).map(str.strip)
    turn = data.draw(st.builds(Assistant, words, words, st.lists(calls, max_size=3).map(tuple)))
    dialect, rendered = dialects[name], prompts[name]()
    begin = len(rendered.ids)
    assert dialect.extend(rendered, [turn], open_turn=False, tools=[NUMBERS])
    assert dialect.parse_turn(rendered.ids[begin:]) == turn
    assert all(span.own for span in rendered.spans if span.start >= begin)


def test_arguments_take_the_type_of_their_schema_only_where_that_is_exact() -> None:
    assert [value_of(text, "integer") for text in ("0", "-12", "012", "1e3", "-0", "٣", "9" * 20)] == [
        0,
        -12,
        *("012", "1e3", "-0", "٣", "9" * 20),
    ]
    assert [value_of(text, "boolean") for text in ("true", "false", "True")] == [True, False, "True"]
    assert value_of("1", "string") == "1" and value_of("1", None) == "1"


def test_formats_are_told_apart_by_what_templates_write(dialects: dict[str, TemplateDialect]) -> None:
    found = {name: dialect._shape.style.format.name for name, dialect in dialects.items()}
    assert found == {
        "qwen3": "hermes",
        "hermes": "hermes",
        "qwen_coder": "qwen_coder",
        "deepseek": "deepseek",
        "kimi": "kimi",
        "kimi_thinking": "kimi",
    }
    assert detect_format("{{ messages }}").name == "none" and len({form.name for form in FORMATS}) == len(FORMATS)


def read(dialect: TemplateDialect, text: str) -> Assistant | Malformed:
    return dialect.parse_turn(dialect._vocabulary.encode_written(text))


SECTION = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|><|im_end|>"
ARGUED = "<|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>"
BEGUN, SEPARATOR = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
ENDED = "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"


@pytest.mark.parametrize(
    ("name", "text", "turn"),
    [
        ("qwen3", '<tool_call>{"name":"a"}</tool_call><|im_end|>', Assistant(calls=(Call("a"),))),
        (
            "qwen3",
            '<think>t</think>w\n\n<tool_call>{"name": "a", "arguments": {"x": [1, {"é": null}], "y": 2.5}}'
            "</tool_call>\n<|im_end|>",
            Assistant("t", "w\n", (Call("a", {"x": '[1, {"é": null}]', "y": "2.5"}),)),
        ),
        ("qwen3", "<think>\n\n</think>\n\nw<|im_end|>", Assistant("", "w")),
        ("hermes", "I would write <tag> here<|im_end|>", Assistant("", "I would write <tag> here")),
        (
            "qwen_coder",
            "<tool_call><function=a><parameter=x>1</parameter></function></tool_call><|im_end|>",
            Assistant(calls=(Call("a", {"x": "1"}),)),
        ),
        (
            "deepseek",
            f'{BEGUN}function{SEPARATOR}read\n```json\n{{"path": "a"}}\n```{ENDED}',
            Assistant(calls=(Call("read", {"path": "a"}),)),
        ),
        ("deepseek", f"w{BEGUN}read{SEPARATOR}{{}}{ENDED}", Assistant("", "w", (Call("read"),))),
        ("kimi", SECTION.format(ARGUED + "{}<|tool_call_end|>"), Assistant(calls=(Call("read"),))),
        (
            "kimi",
            SECTION.format(ARGUED.replace("functions.read:0", "mine:x") + "{}<|tool_call_end|>"),
            Assistant(calls=(Call("mine:x"),)),
        ),
    ],
)
def test_what_models_write_is_read(dialects: dict[str, TemplateDialect], name: str, text: str, turn: Assistant) -> None:
    assert read(dialects[name], text) == turn


@pytest.mark.parametrize(
    ("name", "text", "kind", "sentence"),
    [
        ("qwen3", "w", "CutOff", "cut off before its end"),
        ("qwen3", "<think>t<|im_end|>", "CutOff", "thinking has no end"),
        ("qwen3", "w<think>t</think><|im_end|>", "WrongOrder", "thinking comes once and first"),
        ("qwen3", "<|im_start|>user<|im_end|>", "UnexpectedToken", "<|im_start|> has no place in an assistant's turn"),
        ("qwen3", "<tool_call>{}</tool_call><|im_end|>", "WrongOrder", "needs a name and arguments"),
        ("qwen3", "<tool_call>[1]</tool_call><|im_end|>", "WrongOrder", "needs a name and arguments"),
        ("qwen3", '<tool_call>{"name": "a", }</tool_call><|im_end|>', "WrongOrder", "not JSON"),
        ("qwen3", '<tool_call>{"name": "a"}<|im_end|>', "CutOff", "no </tool_call>"),
        ("qwen3", '<tool_call>{"name": "a"}</tool_call> so<|im_end|>', "WrongOrder", "words stand after a call"),
        ("qwen3", "</tool_call><|im_end|>", "WrongOrder", "stands outside a call"),
        ("qwen3", '<think><tool_call>{"name": "a"}</tool_call><|im_end|>', "WrongOrder", "inside the thinking"),
        ("qwen3", '<tool_call>{"name": "\\ud800"}</tool_call><|im_end|>', "WrongOrder", "surrogate"),
        ("qwen3", "<tool_call>" + "[" * 3000 + "</tool_call><|im_end|>", "WrongOrder", "not JSON"),
        ("qwen3", '<tool_call>{"name": "a"}</tool_call><tool_call>{"na', "CutOff", "cut off before its end"),
        ("qwen_coder", "<tool_call>x</tool_call><|im_end|>", "WrongOrder", "a call is <function=NAME>"),
        (
            "qwen_coder",
            "<tool_call><function=a><parameter=x>1</function></tool_call><|im_end|>",
            "WrongOrder",
            "no </parameter>",
        ),
        ("deepseek", f"{BEGUN}read{ENDED}", "WrongOrder", "behind its name"),
        ("deepseek", f"{BEGUN}read{SEPARATOR}{{}}<｜end▁of▁sentence｜>", "CutOff", "no <｜tool▁call▁end｜>"),
        ("deepseek", f"{BEGUN}read{SEPARATOR}[]{ENDED}", "WrongOrder", "needs a name and arguments"),
        ("kimi", SECTION.format(ARGUED + "{<|tool_call_end|>"), "WrongOrder", "not JSON"),
        ("kimi", ARGUED + "<|im_end|>", "WrongOrder", "outside a call"),
    ],
)
def test_what_models_get_wrong_is_named(
    dialects: dict[str, TemplateDialect], name: str, text: str, kind: str, sentence: str
) -> None:
    turn = read(dialects[name], text)
    assert isinstance(turn, Malformed), turn
    assert turn.kind == kind and sentence in turn.message


def test_an_unknown_token_and_words_behind_the_end_are_faults(dialects: dict[str, TemplateDialect]) -> None:
    dialect = dialects["qwen3"]
    end = dialect.stop_ids[0]
    turn = dialect.parse_turn([dialect.vocab_size, end])
    assert isinstance(turn, Malformed) and turn.kind == "UnknownToken"
    turn = dialect.parse_turn([*dialect.encode("a"), end, *dialect.encode("b")])
    assert isinstance(turn, Malformed) and turn.kind == "UnexpectedToken"


def test_calls_that_came_whole_before_a_fault_are_kept(dialects: dict[str, TemplateDialect]) -> None:
    turn = read(dialects["qwen3"], '<think>t</think>w\n<tool_call>{"name": "a"}</tool_call><tool_call>{"name": ')
    assert isinstance(turn, Malformed) and turn.partial == Assistant("t", "w", (Call("a"),))

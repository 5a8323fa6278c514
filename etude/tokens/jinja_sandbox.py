"""Chat templates: jinja in a sandbox, with the names that templates of Hugging Face checkpoints expect.

A template comes with a download and is hostile until shown otherwise. It runs in jinja's immutable sandbox, counts its
loop steps, and may neither build nor write more than a bounded text, so one that raises, escapes or runs wild ends in
one sentence. Knows no messages and no tokens.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from etude.core.errors import EtudeError

MOST_STEPS = 2_000_000  # turns of all loops together and calls of macros
MOST_SECONDS = 5.0
MOST_CHARACTERS = 32 << 20  # of any text that it writes or builds on the way
MOST_REPEATS = 100_000  # numbers that widen or multiply text
# What takes a width and can make any amount of text from little; no known template needs it.
UNSAFE_FILTERS = ("center", "format", "indent", "wordwrap", "batch", "slice")
DICT_METHODS = frozenset(dir(dict))
UNSAFE_METHODS = ("center", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill")


class _TooMuch(Exception):
    """A template that would not end or grows without end."""


class _Work(threading.local):
    """What the rendering in this thread has done so far: a server renders in several at once."""

    steps = 0
    deadline = 0.0


_work = _Work()


class ChatTemplate:
    """One template, ready to render."""

    def __init__(self, source: str, where: str) -> None:
        self.source, self.where = source, where
        self._environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        try:
            tree = _Counting(self._environment).visit(self._environment.parse(source))
            self._template = self._environment.from_string(tree)
        except (jinja2.TemplateError, RecursionError, ValueError, SyntaxError) as error:
            raise EtudeError(f"the chat template of {where} cannot be read: {error}") from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """What the template writes for a conversation; `EtudeError` when it refuses, fails or runs wild."""
        _work.steps, _work.deadline = 0, time.monotonic() + MOST_SECONDS
        written: list[str] = []
        size = 0
        try:
            for text in self._template.generate(variables):
                written.append(text)
                size += len(text)
                if size > MOST_CHARACTERS:
                    raise _TooMuch
        except (_TooMuch, MemoryError, RecursionError):
            raise EtudeError(
                f"the chat template of {self.where} runs wild: it was stopped after {MOST_STEPS} steps, "
                f"{MOST_SECONDS:g} s or {MOST_CHARACTERS >> 20} MiB of text"
            ) from None
        except jinja2.TemplateError as error:
            raise EtudeError(f"the chat template of {self.where} refuses the conversation: {error}") from None
        except Exception as error:  # whatever the template's own code does wrong
            said = f"{type(error).__name__}: {error}"
            raise EtudeError(f"the chat template of {self.where} fails on the conversation: {said:.300}") from None
        return "".join(written)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with the operators and calls in which text can explode looked at first."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_extension(_Guard)
        for name in UNSAFE_FILTERS:
            del self.filters[name]
        self.filters |= {"tojson": _to_json, "replace": _replace, "join": _join}
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now}

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple)]
        numbers = [abs(side) for side in (left, right) if isinstance(side, int | float)]
        # A large power takes time and memory before there is any text to measure.
        if operator == "**" and any(number > 1000 for number in numbers):
            raise _TooMuch
        if sizes and (sum(sizes) > MOST_CHARACTERS or (operator == "*" and any(n > MOST_REPEATS for n in numbers))):
            raise _TooMuch
        if operator == "%" and isinstance(left, str):
            raise jinja2.TemplateError("a template may not format text with %")
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in DICT_METHODS:
            return obj[attribute]  # what the sandbox would come to, ten times as fast: most of a template is this
        if isinstance(obj, str) and attribute in UNSAFE_METHODS:
            return self.unsafe_undefined(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, str) and argument in UNSAFE_METHODS:
            return self.unsafe_undefined(obj, argument)
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str) and len(args) >= 2 and __obj.__name__ == "replace":
            return _replace(text, *args[:3], **kwargs)
        if isinstance(text, str) and args and __obj.__name__ == "join":
            return _join(args[0], text)
        return super().call(__context, __obj, *args, **kwargs)


class _Guard(Extension):
    """Counts, and knows the `{% generation %}` block with which some templates mark the assistant's words."""

    tags = {"generation"}  # noqa: RUF012
    identifier = "etude.guard"

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("said"), [], [], body).set_lineno(line)

    def said(self, caller: Macro) -> str:
        return str(caller())

    def tick(self) -> str:
        _work.steps += 1
        # The clock only now and then: asking it costs more than most steps.
        if _work.steps > MOST_STEPS or (_work.steps % 64 == 0 and time.monotonic() > _work.deadline):
            raise _TooMuch
        return ""

    def join(self, *parts: Any) -> str:
        texts = [str(part) for part in parts]
        if sum(map(len, texts)) > MOST_CHARACTERS:
            raise _TooMuch
        return "".join(texts)


class _Counting(NodeTransformer):
    """Makes every loop and macro count its steps, and `a ~ b` look at sizes, in a parsed template."""

    def __init__(self, environment: _Environment) -> None:
        self.environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, self._tick(node.lineno))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, self._tick(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        method = nodes.ExtensionAttribute(_Guard.identifier, "join", lineno=node.lineno)
        call = nodes.Call(method, node.nodes, [], None, None, lineno=node.lineno)
        return call.set_environment(self.environment)

    def _tick(self, line: int) -> nodes.Node:
        method = nodes.ExtensionAttribute(_Guard.identifier, "tick", lineno=line)
        call = nodes.Call(method, [], [], None, None, lineno=line)
        return nodes.ExprStmt(call, lineno=line).set_environment(self.environment)


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    before, there, put = str(text), str(old), str(new)
    times = before.count(there) if count is None or count < 0 else min(count, before.count(there))
    if times * len(put) > MOST_CHARACTERS:
        raise _TooMuch
    return before.replace(there, put, times)


def _join(parts: Any, between: Any = "", attribute: str | None = None) -> str:
    texts = [str(part[attribute] if attribute is not None else part) for part in parts]
    if sum(map(len, texts)) + len(str(between)) * len(texts) > MOST_CHARACTERS:
        raise _TooMuch
    return str(between).join(texts)


def _refuse(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= 16):
        raise jinja2.TemplateError("tojson takes an indent of 0 to 16")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

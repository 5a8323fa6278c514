"""A loaded checkpoint's conversations: its own tokenizer and its own chat template, as a dialect.

A template writes a whole conversation at once; here it has to continue one, token for token. Ids that were sampled
stay as they are, and what follows them is what the template writes behind the end of that turn. For that the template
is shown each sampled turn as a stand-in: a turn of the same parts whose texts are marks. Where the longer conversation
does not begin with what was written before, or a mark is gone, the template would rewrite history (most that know
thinking drop the old), and `extend` says so.

Text that spells a control token is hidden from the template behind a mark as well, and comes back as plain text, so
nothing that a user, a tool or a file says can become structure.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Message, Part, ToolResult, User
from etude.tokens.checkpoint_files import TOKENIZER, TokenFiles
from etude.tokens.dialect import EFFORT_VARIABLE, ToolSchema
from etude.tokens.jinja_sandbox import ChatTemplate
from etude.tokens.parse import Malformed
from etude.tokens.render import Rendered
from etude.tokens.template_escaping import CLOSE, OPEN, Hiding, mark
from etude.tokens.template_layout import Row, Shape, find_shape
from etude.tokens.template_messages import Conversation, add_messages, add_sampled_turn, calls_of, placeholder_turn
from etude.tokens.turn_parsing import END_THINK, THINK, Turn, read_turn
from etude.tokens.vocabulary import Vocabulary

# Variables that the conversation itself makes: nobody may set them from outside.
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "pad_token"})


class TemplateDialect:
    """The dialect of a checkpoint that brings a tokenizer and a chat template."""

    def __init__(self, files: TokenFiles, options: Mapping[str, Any] | None = None) -> None:
        """`options` are further variables for the template, such as `enable_thinking`."""
        self._files, self._options = files, dict(options or {})
        if TOKENIZER not in files.data:
            raise EtudeError(f"no tokenizer in {files.directory}: {TOKENIZER} is missing")
        self._vocabulary = Vocabulary(files.data[TOKENIZER], files.directory / TOKENIZER)
        self._templates = {name: ChatTemplate(text, str(files.directory)) for name, text in files.templates.items()}
        self._hiding = Hiding(self._vocabulary.control)
        self.vocab_size = self._vocabulary.size

    @classmethod
    def open(cls, directory: Path, options: Mapping[str, Any] | None = None) -> TemplateDialect:
        return cls(TokenFiles.read(directory), options)

    def with_options(self, options: Mapping[str, Any]) -> TemplateDialect:
        """The same with further variables for the template; the vocabulary is shared."""
        other = copy.copy(self)
        other._options = self._options | dict(options)
        for name in [name for name, value in vars(type(self)).items() if isinstance(value, cached_property)]:
            other.__dict__.pop(name, None)  # found out under the old variables
        return other

    @cached_property
    def fingerprint(self) -> str:
        facts = [self._files.data[TOKENIZER].decode(errors="replace"), self._files.templates, self._options]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def shows_tools(self) -> bool:
        name = "a_tool_to_look_for"
        return name in self._write([{"role": "user", "content": "x"}], True, [ToolSchema(name)])

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        ends = {*self._files.end_ids, *self._spelled_ends()}
        ids = sorted(number for number in ends if number in self._vocabulary.spelling)
        if not ids:
            raise EtudeError(
                f"nothing in {self._files.directory} says which token ends a turn: "
                "set eos_token_id in generation_config.json"
            )
        return tuple(ids)

    def encode(self, text: str) -> list[int]:
        return self._vocabulary.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return self._vocabulary.decode(ids)

    def bytes_of(self, token: int) -> bytes:
        return self._vocabulary.bytes_of(token)

    def save(self, directory: Path | str) -> None:
        self._files.write(Path(directory))

    def stating_effort(self, level: str) -> TemplateDialect | None:
        if not any(EFFORT_VARIABLE in text for text in self._files.templates.values()):
            return None
        assert self.fingerprint  # ids mean the same at every level: the copy keeps what is cached here
        stating = copy.copy(self)
        stating._options = {**self._options, EFFORT_VARIABLE: level}
        return stating

    # Writing

    def extend(
        self, rendered: Rendered, messages: Sequence[Message], *, open_turn: bool, tools: Sequence[ToolSchema] = ()
    ) -> bool:
        before = rendered.mark()
        rest = list(messages)
        if rest and isinstance(rest[0], Assistant) and _state_of(rendered).phase == "open":
            self.append_sampled(rendered, self._turn_ids(_state_of(rendered), rest.pop(0), tools))
        state = _state_of(rendered)
        if not rest and (not open_turn or state.phase == "open"):
            return True
        if state.phase == "open" or not self._write_on(rendered, state, rest, open_turn, tools):
            rendered.rewind(before)
            return False
        return True

    def _write_on(
        self,
        rendered: Rendered,
        state: Conversation,
        messages: list[Message],
        open_turn: bool,
        tools: Sequence[ToolSchema],
    ) -> bool:
        """Appends what the template writes behind all that is there; False when it would write that anew."""
        after = add_messages(state, messages, tools, self._shape, self._hiding.hide)
        closed = self._write(after.rows, False, tools) if messages else ""
        text = self._write(after.rows, True, tools) if open_turn else closed
        start = self._start(state, text)
        if start is None:
            return False
        split = start  # of the messages from the prompt that opens a turn
        if messages:
            split = len(closed) if start <= len(closed) and text.startswith(closed) else len(text)
            if not self._vocabulary.begins_with_control(text, split):  # elsewhere, two texts encode unlike their sum
                split = len(text)
            self._append_messages(rendered, state, after, messages, tools, text, start, split)
        rendered.append(len(after.rows), "prompt", self._encode(text[split:]), own=False)
        rendered.state = replace(after, text=text, phase="open" if open_turn else "closed", marks=(), end="")
        return True

    def _start(self, state: Conversation, text: str) -> int | None:
        """Where in the template's text that begins which is not there yet; None when history would change."""
        if not text.startswith(state.text):
            return None
        if state.phase != "sampled":
            return len(state.text)
        places = [text.find(one, len(state.text)) for one in state.marks]
        # The template left a part of the turn out, as most do with old thinking.
        if min(places) < 0:
            return None
        last = max(place + len(one) for place, one in zip(places, state.marks, strict=True))
        place, end = self._find_end(text, last)
        if not end:
            return last
        return place + len(end) if end == state.end else place

    def _find_end(self, text: str, start: int) -> tuple[int, str]:
        """The next token that ends a turn; the text's own end and '' when there is none."""
        found = [(place, end) for end in self._end_spellings if (place := text.find(end, start)) >= 0]
        return min(found) if found else (len(text), "")

    def append_sampled(self, rendered: Rendered, ids: Sequence[int]) -> None:
        state = _state_of(rendered)
        if state.phase != "open":
            raise EtudeError("sampled tokens need an open assistant turn before them: extend with open_turn=True")
        if any(token in self.stop_ids for token in ids[:-1]):
            raise EtudeError("sampled tokens go on after the end of their turn: sample with the dialect's stop_ids")
        turn = self._read(ids)
        message = turn.message.partial if isinstance(turn.message, Malformed) else turn.message
        end = self._vocabulary.spelling[ids[-1]] if ids and ids[-1] in self.stop_ids else ""
        starts = [start for _, start in turn.parts[1:]]
        for (part, start), stop in zip(turn.parts, [*starts, len(ids)], strict=True):
            rendered.append(len(state.rows), part, ids[start:stop], own=True)
        rendered.state = add_sampled_turn(state, message, turn.call_ids, end, self._shape, self._hiding.hide)

    def turn_ids(self, turn: Assistant, messages: Sequence[Message] = ()) -> list[int]:
        rendered = Rendered()
        self.extend(rendered, messages or [User("")], open_turn=True)
        return self._turn_ids(_state_of(rendered), turn, ())

    def _turn_ids(self, state: Conversation, turn: Message, tools: Sequence[ToolSchema]) -> list[int]:
        """What a model has to sample to say a turn into the open one: what the template writes for it there."""
        assert isinstance(turn, Assistant)
        shape, style = self._shape, self._shape.style
        text, shown, marks = self._shown_turn(state, turn, tools, thinks=bool(turn.thinking) or style.opens_thinking)
        if text.startswith(state.text) and all(one in shown[len(state.text) :] for one in marks):
            said = text[len(state.text) :]
        else:  # it would drop a part even here
            said = self._whole_turn(state, turn, tools)
        place, end = self._find_end(said, 0)
        return self._encode(said[:place] + (end or shape.end))

    def _whole_turn(self, state: Conversation, turn: Assistant, tools: Sequence[ToolSchema]) -> str:
        """A turn with all its parts: thinking as the prompt asks for it, the rest as far as the template has it."""
        style, hide = self._shape.style, self._hiding.hide
        text, shown, marks = self._shown_turn(state, replace(turn, thinking=""), tools, thinks=False)
        words = shown.rfind(marks[0]) if turn.final or not turn.calls else -1
        if words >= 0:
            said = text[words:]
        else:
            first = min((place for one in marks if (place := shown.rfind(one)) >= 0), default=len(shown))
            calls = text[shown.rfind(style.format.opener, 0, first) :] if turn.calls else ""
            said = hide(turn.final) + (style.call_gap if turn.final and calls else "") + calls
        if not turn.thinking and not style.opens_thinking:
            return said
        opened = "" if style.opens_thinking else f"{THINK}{style.lead}"
        return f"{opened}{hide(turn.thinking)}{style.tail}{END_THINK}{style.gap}{said}"

    def _shown_turn(
        self, state: Conversation, turn: Assistant, tools: Sequence[ToolSchema], *, thinks: bool
    ) -> tuple[str, str, tuple[str, ...]]:
        """What the template writes with a turn as the last one, with its stand-in there, and the marks of that."""
        shape, hide = self._shape, self._hiding.hide
        row = add_messages(state, [turn], tools, shape, hide).rows[-1]
        numbers = [number for _, number in calls_of(row)]
        marked, marks = placeholder_turn(turn, numbers, len(state.rows), shape, hide, thinks=thinks)
        return self._write((*state.rows, row), False, tools), self._write((*state.rows, marked), False, tools), marks

    # Reading

    def parse_turn(self, ids: Sequence[int]) -> Assistant | Malformed:
        return self._read(ids).message

    def _read(self, ids: Sequence[int]) -> Turn:
        style = self._shape.style
        return read_turn(list(self._vocabulary.pieces(ids, style.marks)), style, self._end_spellings)

    # Spans

    def _append_messages(
        self,
        rendered: Rendered,
        before: Conversation,
        after: Conversation,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        text: str,
        start: int,
        stop: int,
    ) -> None:
        """Appends what the template wrote for new messages, with a span for each that has tokens of its own."""
        ids = self._encode(text[start:stop])
        first = len(before.rows)
        borders = self._borders(after.rows, first, ids, tools, start) if len(messages) > 1 else [0]
        for number, (message, begin, end) in enumerate(zip(messages, borders, [*borders[1:], len(ids)], strict=True)):
            part: Part = "output" if isinstance(message, ToolResult) else "prompt"
            part = "final" if isinstance(message, Assistant) else part
            rendered.append(first + number, part, ids[begin:end], own=False)

    def _borders(
        self, rows: Sequence[Row], first: int, ids: Sequence[int], tools: Sequence[ToolSchema], start: int
    ) -> list[int]:
        """The token at which each new message begins.

        Messages whose texts are marks are written with the same control tokens, and those between the marks of two
        neighbours are where the border is: behind the end of a turn, where there is one. Without such a token a
        message has no tokens of its own.
        """
        new = rows[first:]
        marked = [row | {"content": mark(f"m{n}")} for n, row in enumerate(new)]
        try:
            text = self._write([*rows[:first], *marked], False, tools)[start:]
        except EtudeError:
            return [0] * len(new)
        controls = [place for place, token in enumerate(ids) if token in self._vocabulary.spelling]
        borders = [len(controls)] * len(new)  # as numbers of control tokens
        borders[0] = seen = current = 0
        between: list[tuple[int, str]] = []
        for found in re.finditer(rf"{OPEN}m(\d+){CLOSE}|{self._vocabulary.control_pattern}", text):
            if found[1] is None:
                between.append((seen, found.group()))
                seen += 1
            elif int(found[1]) > current:
                number = int(found[1])
                ended = [n + 1 for n, spelling in between[:-1] if spelling in self._end_spellings]
                border = ended[0] if ended else between[0][0] if between else seen
                borders[current + 1 : number + 1] = [border] * (number - current)
                current, between = number, []
            else:
                between = []
        if seen != len(controls):
            return [0] * len(new)
        return [0, *(controls[n] if n < seen else len(ids) for n in borders[1:])]

    # Text

    def _write(self, rows: Sequence[Row], open_turn: bool, tools: Sequence[ToolSchema]) -> str:
        shown = [
            {
                "type": "function",
                "function": {
                    "name": self._hiding.hide(tool.name),
                    "description": self._hiding.hide(tool.description),
                    "parameters": self._hiding.hide_json(tool.parameters),
                },
            }
            for tool in tools
        ]
        variables = {
            "messages": [dict(row) for row in rows],
            "tools": shown or None,
            "documents": None,
            "add_generation_prompt": open_turn,
            **self._files.special,
            **self._options,
        }
        return self._template(tools=bool(tools)).render(variables)

    def _template(self, *, tools: bool) -> ChatTemplate:
        if not self._templates:
            raise EtudeError(
                f"{self._files.directory} has no chat template, so it can complete text but not hold a conversation: "
                "use the instruct version of the model, or put a chat_template.jinja there"
            )
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        return self._templates.get(name) or next(iter(self._templates.values()))

    @cached_property
    def _shape(self) -> Shape:
        """How turns are laid out, by the template for conversations with tools."""
        template = self._template(tools=True)

        def write(rows: list[Row], open_turn: bool) -> str:
            variables = {"messages": rows, "tools": None, "documents": None, "add_generation_prompt": open_turn}
            return template.render({**variables, **self._files.special, **self._options})

        return find_shape(write, template.source, self._vocabulary.control, self._files.special.get("eos_token", ""))

    def _spelled_ends(self) -> set[int]:
        names = {self._files.special.get("eos_token", "")}
        if self._templates:
            names.add(self._shape.end)
        return {self._vocabulary.control[name] for name in names if name in self._vocabulary.control}

    @cached_property
    def _end_spellings(self) -> tuple[str, ...]:
        return tuple(self._vocabulary.spelling[number] for number in self.stop_ids)

    def _encode(self, text: str) -> list[int]:
        return self._vocabulary.encode_written(text, self._hiding.show if self._hiding.hides(text) else None)


def _state_of(rendered: Rendered) -> Conversation:
    if isinstance(rendered.state, Conversation):
        return rendered.state
    if rendered.ids:
        raise EtudeError("a conversation that was saved cannot be continued: render its messages anew")
    return Conversation()

"""Messages to ids: the message format, with spans that say whose each token is.

Structure is control tokens alone and the text between them is plain `encode` output, so nothing is escaped and no
text can break out of its place. A conversation reads

    system TEXT
    user TEXT
    assistant [thinking TEXT] [final TEXT] (call NAME (argument NAME value TEXT)*)* end_of_turn
    tool TEXT                 answers the next unanswered call of the turn before
    tool NAME output TEXT     any other result

where a turn ends with the start of the next one, except the assistant's, which the model must end itself. Every
message only appends, so the ids of a conversation are a prefix of the ids of each of its continuations.

Sampled ids are never produced again from text: `append_sampled` takes them as they are and `extend` writes what
follows. Knows nothing of tools, truncation or chat templates of other models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Message, Part, System, ToolResult, User
from etude.tokens.parse import parse_turn, unanswered_calls
from etude.tokens.tokenizer import CONTROL_NAMES, Tokenizer, to_bytes

TURN_PARTS: tuple[Part, ...] = ("thinking", "final", "call")  # of an assistant's turn, by the token that opens each
TURN_MARKERS = (*TURN_PARTS, "argument", "value")  # all that may stand inside an assistant's turn


class Span(NamedTuple):
    """Tokens `start` to `end` belong to one part of one message (each call is a span of its own)."""

    message: int
    part: Part
    start: int
    end: int
    own: bool  # the assistant's: what the model samples, markers and end of turn included


class TokenFacts(NamedTuple):
    """Spans spread out, one entry a token."""

    message: list[int]
    part: list[Part]
    own: list[bool]


@dataclass
class Rendered:
    """One append-only token sequence. Its spans lie end to end and cover every token."""

    ids: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    state: object = None  # what a dialect remembers between two calls; never changed in place

    def append(self, message: int, part: Part, ids: Sequence[int], *, own: bool) -> None:
        """A span of these ids, unless there are none."""
        if ids:
            start = len(self.ids)
            self.ids.extend(ids)
            self.spans.append(Span(message, part, start, len(self.ids), own))

    def mark(self) -> tuple[int, int, object]:
        """Where it stands now, for `rewind`."""
        return len(self.ids), len(self.spans), self.state

    def rewind(self, mark: tuple[int, int, object]) -> None:
        """Takes back what was appended since."""
        tokens, spans, self.state = mark
        del self.ids[tokens:], self.spans[spans:]

    def per_token(self) -> TokenFacts:
        facts = TokenFacts([], [], [])
        for span in self.spans:
            length = span.end - span.start
            facts.message.extend([span.message] * length)
            facts.part.extend([span.part] * length)
            facts.own.extend([span.own] * length)
        return facts


def render(messages: Iterable[Message], tokenizer: Tokenizer, *, open_turn: bool) -> Rendered:
    """The ids of a conversation; `open_turn` ends them with the start of the turn that the model is to continue."""
    rendered = Rendered()
    extend(rendered, messages, tokenizer, open_turn=open_turn)
    return rendered


def extend(rendered: Rendered, messages: Iterable[Message], tokenizer: Tokenizer, *, open_turn: bool) -> None:
    """Appends messages in place; what is there stays as it is.

    An assistant's message fills a turn that is open and still empty. A sampled turn that was cut off is first closed
    with the `cut` token, so that no later reader takes its last call for a finished one.
    """
    unanswered: list[str] | None = None  # read from the ids where it matters, which takes a parse of the last turn
    for message in messages:
        if isinstance(message, Assistant):
            _open_turn(rendered, tokenizer)
            append_sampled(rendered, turn_ids(message, tokenizer), tokenizer)
            unanswered = [call.name for call in message.calls]
        else:
            if unanswered is None:
                unanswered = _unanswered(rendered, tokenizer) if isinstance(message, ToolResult) else []
            _close_turn(rendered, tokenizer)
            ids, part = _environment_ids(message, tokenizer, unanswered)
            rendered.append(_messages(rendered), part, ids, own=False)
            if not isinstance(message, ToolResult):
                unanswered = []
    if open_turn:
        _open_turn(rendered, tokenizer)


def append_sampled(rendered: Rendered, ids: Sequence[int], tokenizer: Tokenizer) -> None:
    """Appends what a model sampled into the open turn, exactly as sampled, however odd."""
    if not _is_open(rendered, tokenizer):
        raise EtudeError("sampled tokens need an open assistant turn before them: render with open_turn=True")
    control = tokenizer.control
    ends = (control["end_of_turn"], control["cut"])
    if any(token in ends for token in ids[:-1]):
        raise EtudeError("sampled tokens go on after the end of their turn: sample with stop_ids(tokenizer)")
    message = rendered.spans[-1].message
    openers = {control[part]: part for part in TURN_PARTS}
    # Tokens before the first part break the format, but every token needs a part.
    part: Part = "final" if rendered.spans[-1].part == "prompt" else rendered.spans[-1].part
    start = 0
    for position, token in enumerate(ids):
        if token in openers:
            rendered.append(message, part, ids[start:position], own=True)
            part, start = openers[token], position
    rendered.append(message, part, ids[start:], own=True)


def stop_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """For `Sampling.stop_ids`: the end of turn, and every control token after which a turn is beyond repair."""
    return tuple(i for name, i in tokenizer.control.items() if name not in TURN_MARKERS)


def turn_ids(message: Assistant, tokenizer: Tokenizer) -> list[int]:
    """What a model has to sample to say this message."""
    control, encode = tokenizer.control, tokenizer.encode
    ids: list[int] = []
    if message.thinking:
        ids += [control["thinking"], *encode(message.thinking)]
    if message.final:
        ids += [control["final"], *encode(message.final)]
    for call in message.calls:
        ids += [control["call"], *encode(call.name)]
        for name, value in call.arguments.items():
            ids += [control["argument"], *encode(name), control["value"], *encode(value)]
    return [*ids, control["end_of_turn"]]


def _environment_ids(
    message: System | User | ToolResult, tokenizer: Tokenizer, unanswered: list[str]
) -> tuple[list[int], Part]:
    """What stands for a message that no model samples; takes the call that it answers out of `unanswered`."""
    control, encode = tokenizer.control, tokenizer.encode
    if isinstance(message, System):
        return [control["system"], *encode(message.text)], "prompt"
    if isinstance(message, User):
        return [control["user"], *encode(message.text)], "prompt"
    # By bytes: one name may come as two texts that differ in lone surrogates.
    if unanswered and to_bytes(unanswered[0]) == to_bytes(message.name):
        del unanswered[0]
        return [control["tool"], *encode(message.text)], "output"
    return [control["tool"], *encode(message.name), control["output"], *encode(message.text)], "output"


def _messages(rendered: Rendered) -> int:
    return rendered.spans[-1].message + 1 if rendered.spans else 0


def _message_start(rendered: Rendered, message: int) -> int:
    """Where a message starts, which is also where its first span does. Cheap for messages near the end."""
    start = len(rendered.ids)
    for span in reversed(rendered.spans):
        if span.message < message:
            break
        start = span.start
    return start


def _is_open(rendered: Rendered, tokenizer: Tokenizer) -> bool:
    if not rendered.spans:
        return False
    control = tokenizer.control
    start = _message_start(rendered, rendered.spans[-1].message)
    ended = rendered.ids[-1] in (control["end_of_turn"], control["cut"])
    return rendered.ids[start] == control["assistant"] and not ended


def _open_turn(rendered: Rendered, tokenizer: Tokenizer) -> None:
    """Ends with an open, empty turn: the one that is there, or a new one."""
    if _is_open(rendered, tokenizer) and rendered.spans[-1].part == "prompt":
        return
    _close_turn(rendered, tokenizer)
    rendered.append(_messages(rendered), "prompt", [tokenizer.control["assistant"]], own=False)


def _close_turn(rendered: Rendered, tokenizer: Tokenizer) -> None:
    if _is_open(rendered, tokenizer):
        last = rendered.spans[-1]
        # The harness writes it, so it is not the model's own and never trained.
        rendered.append(last.message, last.part, [tokenizer.control["cut"]], own=False)


def _unanswered(rendered: Rendered, tokenizer: Tokenizer) -> list[str]:
    """Calls of the last turn that no result has answered yet, read from the ids, so that spans are all the state."""
    control = tokenizer.control
    answered = 0
    for message in range(_messages(rendered) - 1, -1, -1):
        start, end = _message_start(rendered, message), _message_start(rendered, message + 1)
        role = CONTROL_NAMES[rendered.ids[start]]
        if role == "tool":
            answered += control["output"] not in rendered.ids[start:end]
            continue
        if role == "assistant":
            turn = parse_turn(rendered.ids[start + 1 : end], tokenizer)
            return unanswered_calls(turn)[answered:]
        break
    return []

"""This project's own format as a dialect: `Tokenizer`, `render` and `parse` behind one interface.

Every message only appends, so nothing is ever rewritten. Tools are not shown: a model that we train knows them, and
the system text says the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from etude.core.policy import Assistant, Message
from etude.tokens.dialect import ToolSchema
from etude.tokens.parse import Malformed, parse_turn
from etude.tokens.render import Rendered, append_sampled, extend, stop_ids, turn_ids
from etude.tokens.tokenizer import Tokenizer


class Native:
    """The dialect of models that were trained here."""

    shows_tools = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size

    @property
    def fingerprint(self) -> str:
        return self.tokenizer.fingerprint

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        return stop_ids(self.tokenizer)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode(ids)

    def bytes_of(self, token: int) -> bytes:
        return self.tokenizer.bytes_of(token)

    def extend(
        self, rendered: Rendered, messages: Sequence[Message], *, open_turn: bool, tools: Sequence[ToolSchema] = ()
    ) -> bool:
        extend(rendered, messages, self.tokenizer, open_turn=open_turn)
        return True

    def append_sampled(self, rendered: Rendered, ids: Sequence[int]) -> None:
        append_sampled(rendered, ids, self.tokenizer)

    def parse_turn(self, ids: Sequence[int]) -> Assistant | Malformed:
        return parse_turn(ids, self.tokenizer)

    def turn_ids(self, turn: Assistant, messages: Sequence[Message] = ()) -> list[int]:
        return turn_ids(turn, self.tokenizer)

    def stating_effort(self, level: str) -> None:
        return None  # a line of the system text says it

    def save(self, directory: Path | str) -> None:
        self.tokenizer.save(directory)

"""What a conversation looks like to one model: text, messages and tools to ids, and sampled ids back to a turn.

There are two kinds. `native` is this project's own format, in which structure is control tokens alone; `template` is
the tokenizer and the chat template that a loaded checkpoint brings with it. Everybody above works with either through
the protocol here. Knows neither of them until a directory is opened, and no tool and no sandbox at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Message
from etude.tokens.parse import Malformed
from etude.tokens.render import Rendered

EFFORT_VARIABLE = "reasoning_effort"  # as chat templates that know of effort call it


@dataclass(frozen=True)
class ToolSchema:
    """A tool as chat templates show it: its name, a line about it, and a JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


class Dialect(Protocol):
    """Token-exact: ids that were sampled stay as they came, and what follows is written behind them."""

    @property
    def fingerprint(self) -> str:
        """Names what ids mean: equal for two dialects only when they encode, decode and render alike."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """For `Sampling.stop_ids`: the tokens that end a turn."""

    @property
    def shows_tools(self) -> bool:
        """Whether `extend` writes the tools into the prompt, so that the system text need not."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text; never a control token, whatever the text spells."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; control tokens have none."""

    def bytes_of(self, token: int) -> bytes:
        """The bytes that one id stands for, none for a control token: for decoding while ids arrive."""

    def extend(
        self, rendered: Rendered, messages: Sequence[Message], *, open_turn: bool, tools: Sequence[ToolSchema] = ()
    ) -> bool:
        """Appends messages in place; `open_turn` ends with the start of the turn that the model is to continue.

        False, and nothing changed, when this dialect would rewrite what is already there: then render the whole
        conversation into a new `Rendered`. An assistant's message fills a turn that is open and still empty.
        """

    def append_sampled(self, rendered: Rendered, ids: Sequence[int]) -> None:
        """Appends what a model sampled into the open turn, exactly as sampled, however odd."""

    def parse_turn(self, ids: Sequence[int]) -> Assistant | Malformed:
        """What sampled ids say, their end of turn included. Never raises for what a model sampled."""

    def turn_ids(self, turn: Assistant, messages: Sequence[Message] = ()) -> list[int]:
        """What a model would have to sample to say this turn behind these messages."""

    def stating_effort(self, level: str) -> Dialect | None:
        """This dialect for rollouts of a level of effort; None where it has no words of its own for that."""

    def save(self, directory: Path | str) -> None:
        """Writes what `open_dialect` needs to give this dialect again."""


def open_dialect(directory: Path | str, options: Mapping[str, Any] | None = None) -> Dialect:
    """The dialect of the model in a directory: ours when its tokenizer is, otherwise the checkpoint's own.

    `options` are variables for its chat template, such as `enable_thinking`; our own format has none.
    """
    from etude.tokens.native import Native
    from etude.tokens.tokenizer import Tokenizer

    if is_ours(Path(directory)):
        return Native(Tokenizer.load(directory))
    # Only now: a chat template needs jinja2, which our own format does without.
    from etude.tokens.template import TemplateDialect

    return TemplateDialect.open(Path(directory), options)


def is_ours(directory: Path) -> bool:
    """Our control tokens are no added tokens, and no other chat model can do without those."""
    path = directory / "tokenizer.json"
    try:
        return not json.loads(path.read_bytes()).get("added_tokens")
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise EtudeError(f"cannot read the tokenizer {path}: {error}") from None

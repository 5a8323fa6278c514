"""What an answer must begin with and keep to: a call of one of the offered functions, or JSON that fits a schema.

The ids that calls and words begin with are found by writing some in the model's own dialect. What all allowed
beginnings share is put behind the prompt; where they part, and inside JSON, a constraint leaves the sampler only the
tokens that may follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.core.policy import Assistant, Call, User
from etude.engine.logit_rules import Constraint, OneOf
from etude.serve.openai.call_grammar import MOST_FORCED, forced_calls
from etude.serve.openai.errors import ApiError
from etude.serve.openai.grammar import Grammars
from etude.serve.openai.request_models import ChatRequest
from etude.serve.openai.streaming import token_bytes
from etude.tokens.dialect import Dialect
from etude.tokens.parse import Malformed
from etude.tokens.template import TemplateDialect

_NAMES = ("a", "b", "read", "Zoom", "_x", "9")  # calls of these share nothing but how a call begins
_WORDS = ("a", "{", "9", "Zoom", "[1", '"x"')  # and answers of these nothing but how words begin
MOST_MARKS = 64
_ARGUMENTS: tuple[dict[str, str], ...] = ({}, {"a": "1"}, {"zed": "x y"}, {"_p": "{"})

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Steering:
    """`opening` stands behind the prompt; `after` maps what may follow to the JSON schema of the rest, None: a call."""

    opening: list[int] = field(default_factory=list)
    after: Mapping[Ids, dict[str, Any] | None] = field(default_factory=dict)
    calls: str | None = None  # in place of `after`: the grammar of all that follows

    def constraint(self, dialect: Dialect, grammars: Grammars, vocab_size: int) -> Constraint | None:
        """A new one for each answer."""
        if self.calls is not None:
            return grammars.of_grammar(self.calls, "tools")
        parts: dict[Ids, Constraint | None] = {}
        for ids, rule in self.after.items():
            call = KeepsCall(dialect, [*self.opening, *ids], vocab_size)
            parts[ids] = grammars.of_schema(rule) if rule is not None else call
        return parts[()] if parts.keys() == {()} else OneOf(parts, vocab_size) if parts else None


class KeepsCall:
    """A turn that has begun with a call ends as one: marks that would make it unreadable do not come.

    The dialect's own parser decides, for each mark, whether a turn with it could still be read. Text inside a call is
    free: arguments are what the model says.
    """

    def __init__(self, dialect: Dialect, begun: Sequence[int], vocab_size: int) -> None:
        self._dialect, self._begun, self._vocab_size = dialect, list(begun), vocab_size
        marks = [token for token in range(dialect.vocab_size) if not token_bytes(dialect, token)]
        # Large vocabularies have hundreds of marks, most of them never used: then only an early end is looked at.
        self._marks = marks if len(marks) <= MOST_MARKS else list(dialect.stop_ids)
        self._structured = not isinstance(dialect, TemplateDialect)  # by marks alone: text changes nothing
        self._last: NDArray[np.bool_] | None = None

    def allowed(self, sampled: Sequence[int]) -> NDArray[np.bool_] | None:
        inside_text = len(sampled) > 1 and not {*sampled[-2:]} & {*self._marks}
        if self._last is not None and self._structured and inside_text:
            return self._last  # a long argument is not parsed again for each of its tokens
        mask = np.ones(self._vocab_size, dtype=np.bool_)
        for token in self._marks:
            parsed = self._dialect.parse_turn([*self._begun, *sampled, token])
            if isinstance(parsed, Malformed):
                mask[token] = parsed.kind == "CutOff" and token not in self._dialect.stop_ids
            else:
                mask[token] = bool(parsed.calls)
        self._last = mask
        return mask


def steering_of(request: ChatRequest, dialect: Dialect, grammars: Grammars) -> Steering:
    functions, rule = request.functions_offered, request.json_rule
    if request.must_call and (forced := _forced(request, dialect, grammars)) is not None:
        return forced
    begins: dict[Ids, dict[str, Any] | None] = {}
    if request.must_call:
        for function in functions:
            begins |= dict.fromkeys(named_openings(dialect, function.name))
    elif rule is not None:
        words = _common([dialect.turn_ids(Assistant(final=text), [User("?")]) for text in _WORDS])
        begins[words] = rule
        if functions:
            # It may call instead of answering, if the two begin in different ways.
            call = tuple(call_opening(dialect))
            if call[: len(words)] != words and words[: len(call)] != call:
                begins[call] = None
    if not begins:
        return Steering()
    opening = _common(list(begins)) if len(begins) > 1 else next(iter(begins))
    return Steering(list(opening), {ids[len(opening) :]: rule for ids, rule in begins.items()})


def _forced(request: ChatRequest, dialect: Dialect, grammars: Grammars) -> Steering | None:
    """Calls whose arguments fit; None where that cannot be had and no function insists on it (`strict`)."""
    functions = request.functions_offered
    strict = any(function.strict for function in functions)
    try:
        found = forced_calls(dialect, functions, 1 if request.parallel_tool_calls is False else MOST_FORCED)
        if found is not None:
            grammars.of_grammar(found.grammar, "tools")
            return Steering(found.opening, calls=found.grammar)
    except ApiError:
        if strict:
            raise
    if strict:
        sentence = "arguments cannot be forced to fit ('strict'): this model writes them in a way of its own"
        raise ApiError(400, sentence, param="tools", code="unsupported_value")
    return None


def call_opening(dialect: Dialect) -> list[int]:
    """The ids that every call begins with: prompted with them, the model must call."""
    opening = _common([dialect.turn_ids(Assistant(calls=(Call(name),)), [User("?")]) for name in _NAMES])
    if not opening:
        raise _no_opening()
    return list(opening)


def named_openings(dialect: Dialect, name: str) -> list[Ids]:
    """What a call of this function begins with, up to its arguments."""
    calls = [Assistant(calls=(Call(name, arguments),)) for arguments in _ARGUMENTS]
    turns = [tuple(dialect.turn_ids(call, [User("?")])) for call in calls]
    opening = _common(turns)
    if len(opening) <= len(call_opening(dialect)):
        raise _no_opening()
    following = {turn[len(opening) : len(opening) + 1] for turn in turns}
    # Behind a name that ends without a mark of its own, text would make another name of it.
    if all(next_ and not token_bytes(dialect, next_[0]) for next_ in following):
        return [opening + next_ for next_ in sorted(following)]
    return [opening]


def _common(turns: Sequence[Sequence[int]]) -> Ids:
    parting = (place for place, ids in enumerate(zip(*turns, strict=False)) if len(set(ids)) > 1)
    return tuple(turns[0][: next(parting, min(map(len, turns)))])


def _no_opening() -> ApiError:
    sentence = "'tool_choice' cannot ask for a call of this model: its calls do not begin in one way"
    return ApiError(400, sentence, param="tool_choice", code="unsupported_value")

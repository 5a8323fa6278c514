"""Answers that must fit a JSON schema: which tokens may come next, by the library `llguidance`.

The library is an extra (`pip install 'etude[structured]'`): without it such requests are refused with a sentence, and
all others work. Knows a dialect's tokens as bytes, and nothing of messages.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.core.policy import Assistant, User
from etude.serve.openai.errors import ApiError
from etude.serve.openai.streaming import token_bytes
from etude.tokens.dialect import Dialect

LONGEST_SCHEMA = 1 << 18  # bytes
OLDEST = (1, 3)  # as in pyproject.toml
# Without it a model that is unsure may write blanks between two values until its tokens are spent.
SPACING: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def what_is_missing() -> str | None:
    """Why no answer can be forced into a schema here, as a sentence."""
    needs = "needs llguidance {}.{} or newer: pip install 'etude[structured]'".format(*OLDEST)
    try:
        import llguidance  # noqa: F401  (a wheel for another machine is found, but does not load)

        version = importlib.metadata.version("llguidance")
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return f"an answer that fits a schema {needs}"
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        return f"an answer that fits a schema {needs}; installed is {version}"
    return None


class _Tokens:
    """A dialect's vocabulary as the library asks for it."""

    def __init__(self, dialect: Dialect, vocab_size: int) -> None:
        self._dialect = dialect
        plain = [token_bytes(dialect, token) for token in range(vocab_size)]
        # Control tokens have no bytes, but the library wants a name for each; it never allows them as text.
        self.tokens = [data or b"<|control %d|>" % token for token, data in enumerate(plain)]
        self.special_token_ids = [token for token, data in enumerate(plain) if not data]
        self.eos_token_id, self.bos_token_id = dialect.stop_ids[0], None

    def __call__(self, text: bytes | str) -> list[int]:
        return self._dialect.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


class GrammarConstraint:
    """The tokens that keep an answer within a grammar, and at its end those that end the turn."""

    def __init__(self, matcher: Any, vocab_size: int, stop_ids: Sequence[int], ends: Sequence[int]) -> None:
        self._matcher, self._vocab_size, self._seen = matcher, vocab_size, 0
        self._stops, self._ends = np.zeros((2, vocab_size), dtype=np.bool_)
        self._stops[list(stop_ids)] = self._ends[list(ends)] = True

    def allowed(self, sampled: Sequence[int]) -> NDArray[np.bool_] | None:
        for token in sampled[self._seen :]:
            if not self._matcher.is_stopped():
                self._matcher.consume_token(token)
        self._seen = len(sampled)
        if self._matcher.is_stopped() or self._matcher.is_error():
            return self._ends
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        mask = np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(np.bool_)
        if len(mask) < self._vocab_size:
            mask = np.pad(mask, (0, self._vocab_size - len(mask)))
        mask &= ~self._stops
        if self._matcher.is_accepting():
            mask |= self._ends
        return mask if mask.any() else self._ends


class Grammars:
    """Makes constraints for one model; what the library needs of its vocabulary is made once, when first asked for."""

    def __init__(self, dialect: Dialect, vocab_size: int) -> None:
        self._dialect, self._vocab_size = dialect, vocab_size
        self._tokenizer: Any = None
        # Of the ids that end an answer, not all end a turn as its parser wants it: the end of a text does not.
        last = dialect.turn_ids(Assistant(final="a"), [User("?")])[-1:]
        self._ends = [token for token in last if token in dialect.stop_ids] or list(dialect.stop_ids)

    def of_schema(self, schema: dict[str, Any], param: str = "response_format") -> GrammarConstraint:
        """Of answers that are JSON and fit the schema."""
        # The schema may be anything, its keys too: only the library's own function puts it into a grammar safely.
        return self._constraint("json_schema", json.dumps(schema), param)

    def of_grammar(self, grammar: str, param: str) -> GrammarConstraint:
        """Of answers in the library's own language of grammars."""
        return self._constraint("lark", grammar, param)

    def _constraint(self, kind: str, text: str, param: str) -> GrammarConstraint:
        if self._tokenizer is None and (missing := what_is_missing()):
            raise ApiError(400, missing, param=param, code="unsupported_value")
        import llguidance

        if self._tokenizer is None:
            wrapped = llguidance.TokenizerWrapper(_Tokens(self._dialect, self._vocab_size))
            # One end is enough for the library (before 1.7 it takes no more): the constraint itself decides on ends.
            self._tokenizer = llguidance.LLTokenizer(wrapped, eos_token=self._ends[0])
        if len(text) > LONGEST_SCHEMA:
            raise ApiError(400, f"the schema is longer than {LONGEST_SCHEMA} bytes", param=param, code="invalid_value")
        try:
            if kind == "json_schema":
                text = llguidance.LLMatcher.grammar_from_json_schema(text, overrides=SPACING)
            matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0)
            wrong = matcher.get_error()
        except ValueError as error:
            wrong = str(error)
        if wrong:
            reason = " ".join(wrong.split())[:200]
            raise ApiError(400, f"the schema cannot be followed: {reason}", param=param, code="invalid_value")
        return GrammarConstraint(matcher, self._vocab_size, self._dialect.stop_ids, self._ends)

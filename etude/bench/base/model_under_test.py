"""The model under test: scores given tokens, and continues a prompt greedily.

Sequences are scored whole with the forward that training uses, and continued with the engine that serves. Knows no
evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from etude.core.policy import Sampling, Version
from etude.core.settings import EngineSettings
from etude.engine.engine import Engine
from etude.engine.request import Request
from etude.model.checkpoint.directory import load_model
from etude.model.decoder import Decoder
from etude.model.packed_forward import Packed
from etude.tokens.dialect import open_dialect

TOGETHER = 8  # answers decoded at once
TAIL = 24  # tokens in which the end of an answer is looked for

Advance = Callable[[int], None]  # so much of the work is done


class Text(Protocol):
    """What is needed of a dialect: text to ids and back."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def bytes_of(self, token: int) -> bytes: ...


@dataclass(frozen=True)
class ScoredText:
    """A sequence whose tokens from `first` on are scored, all given those before them."""

    ids: Sequence[int]
    first: int  # at least 1: nothing predicts the first token

    def __post_init__(self) -> None:
        assert 1 <= self.first <= len(self.ids)


class ModelUnderTest:
    def __init__(self, decoder: Decoder, text: Text, batch_tokens: int = 4096) -> None:
        self.decoder = decoder.eval()
        self.text = text
        self.batch_tokens = batch_tokens
        self.positions = decoder.config.max_position_embeddings  # longest sequence

    @classmethod
    def open(cls, directory: Path, device: str, batch_tokens: int) -> ModelUnderTest:
        # As it would be served there.
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        return cls(load_model(directory, device, dtype), open_dialect(directory), batch_tokens)

    @classmethod
    def of_training(cls, decoder: Decoder, text: Text, batch_tokens: int) -> ModelUnderTest:
        """A model amid its training as it would be served: on a GPU, a copy in bfloat16."""
        device = decoder.lm_head.weight.device
        if device.type == "cpu":
            return cls(decoder, text, batch_tokens)
        # Training has float32 weights there, which is not what an engine on a GPU serves.
        with device:
            served = Decoder(decoder.config)
        served.load_state_dict(decoder.state_dict())
        for weight in served.parameters():
            weight.data = weight.data.to(torch.bfloat16)
        return cls(served, text, batch_tokens)

    @torch.inference_mode()
    def score(
        self, pieces: Sequence[ScoredText], advance: Advance = lambda tokens: None
    ) -> list[npt.NDArray[np.float64]]:
        """Log-probabilities of the scored tokens of each piece."""
        out: list[npt.NDArray[np.float64]] = []
        for batch in _batches(pieces, self.batch_tokens):
            packed = Packed(self.decoder, [np.array(piece.ids) for piece in batch])
            starts = np.cumsum([0, *(len(piece.ids) for piece in batch)])
            places = [
                np.arange(start + piece.first, start + len(piece.ids))
                for start, piece in zip(starts, batch, strict=False)
            ]
            places_E = packed.put(np.concatenate(places))
            scores_E = packed.logprobs(packed.hidden()[0], places_E - 1, packed.tokens_T[places_E])
            out += np.split(scores_E.double().cpu().numpy(), np.cumsum([len(each) for each in places])[:-1])
            advance(int(starts[-1]))
        return out

    def greedy(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: Sequence[int],
        until: str = "",
        advance: Advance = lambda answers: None,
    ) -> list[list[int]]:
        """The likeliest continuation, token by token, of at most so many each; with `until`, only up to this text."""
        if not prompts:
            return []
        longest = max(len(prompt) + most for prompt, most in zip(prompts, tokens, strict=True))
        engine = self.engine(longest, len(prompts))
        asked = [
            engine.submit(prompt, Sampling(max_tokens=most, temperature=0))
            for prompt, most in zip(prompts, tokens, strict=True)
        ]
        open_answers = {request.number: request for request in asked}
        while engine.busy:
            for request in engine.step():
                del open_answers[request.number]
                advance(1)
            for request in [each for each in open_answers.values() if until and self._reached(each, until)]:
                engine.abort(request.number)
                del open_answers[request.number]
                advance(1)
        return [list(request.answer().ids or ()) for request in asked]

    def engine(self, longest: int, count: int) -> Engine:
        """An engine for so many requests of at most so many tokens."""
        return Engine(self.decoder, _settings(longest, count, self.batch_tokens), Version(0, 0))

    def _reached(self, request: Request, until: str) -> bool:
        # The tail alone: decoding a whole answer after each of its tokens would take quadratic time.
        tail = request.tokens[max(len(request.prompt), request.length - TAIL) :]
        return until in self.text.decode(tail)


def _settings(longest: int, count: int, batch_tokens: int) -> EngineSettings:
    rows = min(TOGETHER, count)
    blocks = -(-longest // 16)
    return EngineSettings(
        max_running=rows,
        max_waiting=count,
        cache_tokens=rows * blocks * 16,
        block_tokens=16,
        max_length=longest,
        prefill_tokens=batch_tokens,
    )


def _batches(pieces: Sequence[ScoredText], tokens: int) -> Iterator[list[ScoredText]]:
    """In order, as many at a time as stay within `tokens`; one that alone is longer goes alone."""
    batch: list[ScoredText] = []
    size = 0
    for piece in pieces:
        if batch and size + len(piece.ids) > tokens:
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += len(piece.ids)
    if batch:
        yield batch

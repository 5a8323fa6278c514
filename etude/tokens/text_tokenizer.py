"""Plain text to ids for training: our own tokenizer, or that of a checkpoint that somebody brings.

A document is what begins it, its ids, and what ends it; fill-in-the-middle needs three more tokens, which not every
checkpoint has. Knows nothing of messages: those are a dialect's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from etude.core.errors import EtudeError
from etude.tokens.checkpoint_files import TOKENIZER, TokenFiles
from etude.tokens.dialect import is_ours
from etude.tokens.tokenizer import Tokenizer
from etude.tokens.vocabulary import Vocabulary


@dataclass(frozen=True)
class FimTokens:
    """The tokens that stand before the three parts of a fill-in-the-middle example."""

    prefix: int
    suffix: int
    middle: int


class TextTokenizer(Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """Names what ids mean: equal for two tokenizers only when they encode and decode alike."""

    @property
    def begin(self) -> tuple[int, ...]:
        """What a document begins with; empty for most."""

    @property
    def end(self) -> int:
        """What ends a document."""

    @property
    def fim(self) -> FimTokens | None:
        """None: this tokenizer has no tokens for fill-in-the-middle."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; never a control token, whatever the text spells."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; control tokens have none."""

    def bytes_of(self, token: int) -> bytes:
        """The bytes that one id stands for, none for a control token."""

    def save(self, directory: Path | str) -> None:
        """Writes what `open_tokenizer` needs to give this tokenizer again."""


# How checkpoints spell the end of a document. A chat checkpoint's `eos_token` ends a turn (Qwen: <|im_end|>), so the
# names are looked for first. Qwen and GPT-2; Llama 3; Kimi; DeepSeek; StarCoder's spelling is Qwen's.
ENDS = ("<|endoftext|>", "<|end_of_text|>", "[EOS]", "<｜end▁of▁sentence｜>")
# Prefix, suffix and middle, as they are spelled by Qwen, StarCoder, and DeepSeek (whose hole stands where the middle
# is missing, that is, before the suffix).
FIMS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)


class CheckpointTokenizer:
    """The tokenizer of a loaded checkpoint, for text that is not a conversation."""

    def __init__(self, directory: Path) -> None:
        self._files = TokenFiles.read(directory)
        if TOKENIZER not in self._files.data:
            raise EtudeError(f"no tokenizer in {directory}: {TOKENIZER} is missing")
        vocabulary = Vocabulary(self._files.data[TOKENIZER], directory / TOKENIZER)
        self.encode_batch, self.decode, self.bytes_of = vocabulary.encode_batch, vocabulary.decode, vocabulary.bytes_of
        self.vocab_size, self.begin, control = vocabulary.size, vocabulary.begin, vocabulary.control
        self.end = _end(control, self._files.special.get("eos_token", ""), directory)
        found = next((names for names in FIMS if all(name in control for name in names)), None)
        self.fim = FimTokens(*(control[name] for name in found)) if found else None

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self._files.data[TOKENIZER]).hexdigest()[:16]

    def save(self, directory: Path | str) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._files.write(Path(directory))


class OwnTokenizer:
    """Our own tokenizer, for text that is not a conversation."""

    begin: tuple[int, ...] = ()

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.vocab_size, self.fingerprint = tokenizer.vocab_size, tokenizer.fingerprint
        self.encode_batch, self.decode, self.bytes_of = tokenizer.encode_batch, tokenizer.decode, tokenizer.bytes_of
        self.save = tokenizer.save
        control = tokenizer.control
        self.end = control["end_of_text"]
        self.fim: FimTokens | None = FimTokens(control["fim_prefix"], control["fim_suffix"], control["fim_middle"])


def open_tokenizer(directory: Path) -> TextTokenizer:
    """The tokenizer of a directory: ours, or the checkpoint's own."""
    return OwnTokenizer(Tokenizer.load(directory)) if is_ours(directory) else CheckpointTokenizer(directory)


def check_vocabulary(tokenizer: TextTokenizer, rows: int, model: Path) -> None:
    """Refuses ids that the model has no embedding for. More rows than ids is usual: checkpoints pad them."""
    if tokenizer.vocab_size > rows:
        raise EtudeError(
            f"the tokenizer in {model} has {tokenizer.vocab_size} ids and the model only {rows} embeddings: it is not "
            "that model's tokenizer; put the right tokenizer.json beside the weights"
        )


def _end(control: Mapping[str, int], eos: str, directory: Path) -> int:
    for name in (*ENDS, eos):
        if name in control:
            return control[name]
    raise EtudeError(
        f"{directory} does not say how a document ends: its tokenizer_config.json names no eos_token, and none of "
        f"{', '.join(ENDS)} is in its tokenizer.json"
    )

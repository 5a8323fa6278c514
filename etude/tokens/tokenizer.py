"""Text to token ids and back: byte-level BPE, trained by the `tokenizers` library, saved as an HF directory.

Control tokens stand at fixed ids at the start of the vocabulary and are structure, never text: they are no
"added tokens" of the encoder, so no spelling of one can turn into it, and the only way to write one is by id.
Any byte can be encoded; bytes that are not valid UTF-8 live in a `str` as lone surrogates (`surrogateescape`).

Knows nothing of messages or models; what the control tokens mean is the business of `render` and `corpus`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Encoder

from etude.core.errors import EtudeError

# A closed set: the position is the id. Append before the reserved ones, never reorder: saved models depend on it.
CONTROL_NAMES = (
    "pad",
    "end_of_text",
    "fim_prefix",
    "fim_middle",
    "fim_suffix",
    "system",
    "user",
    "assistant",
    "tool",
    "end_of_turn",
    "cut",
    "thinking",
    "final",
    "call",
    "argument",
    "value",
    "output",
    "repository",
    "file",
    "summary",
    "reserved_0",
    "reserved_1",
    "reserved_2",
    "reserved_3",
)

# How text falls apart before merging, for Python at small vocabularies: a line break takes the next line's
# indentation along, so that a line is the same tokens inside a file and alone in a tool argument; words, digits and
# signs take one space before them; snake_case parts keep their underscore in front; each digit stands alone.
PATTERN = r"[\r\n]+[ \t]*|[ \t]{2,}| ?_*\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s"

LONGEST_TOKEN = 16  # characters; rulers of 70 dashes and licence headers would waste entries of a small vocabulary
BATCH_CHARACTERS = 4_000_000  # the library's encodings take some 100 bytes a token: hold few at a time
CACHED_WORDS = 2_000  # that the library remembers with their ids, in each thread; 400 bytes each


def _spelling(name: str) -> str:
    return f"<|{name}|>"


class Tokenizer:
    """Text <-> ids. Build one with `Tokenizer.train` or `Tokenizer.load`."""

    def __init__(self, encoder: Encoder) -> None:
        """Takes a `tokenizers` tokenizer without added tokens whose vocabulary starts with the control tokens."""
        self._encoder = encoder
        bound_cache(encoder)
        saved = json.loads(encoder.to_str())
        self._merges: list[list[str]] = saved["model"]["merges"]
        vocabulary = encoder.get_vocab(with_added_tokens=False)
        tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        if [vocabulary[token] for token in tokens] != list(range(len(tokens))):
            raise EtudeError("the tokenizer's ids have holes: it was not made by this project, train a new one")
        if tokens[: len(CONTROL_NAMES)] != [_spelling(name) for name in CONTROL_NAMES]:
            raise EtudeError("the tokenizer has other control tokens than this version of Etude: train a new one")
        if _around_model(saved) != _around_model(json.loads(_untrained().to_str())):
            raise EtudeError("the tokenizer splits text in another way than this version of Etude: train a new one")
        # By a merge, text could become a control token although none is matched in text.
        if not {left + right for left, right in self._merges}.isdisjoint(tokens[: len(CONTROL_NAMES)]):
            raise EtudeError("the tokenizer merges text into a control token: train a new one")
        self._bytes = [b""] * len(CONTROL_NAMES) + [token_bytes(token) for token in tokens[len(CONTROL_NAMES) :]]
        self._byte_ids = {piece[0]: number for number, piece in enumerate(self._bytes) if len(piece) == 1}
        if len(self._byte_ids) != 256:
            raise EtudeError("the tokenizer lacks some of the 256 single bytes: train a new one")
        self.vocab_size = len(tokens)
        self.control: Mapping[str, int] = MappingProxyType({name: i for i, name in enumerate(CONTROL_NAMES)})

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Tokenizer:
        """Learns merges from texts; the same texts give the same tokenizer.

        `vocab_size` counts control tokens and bytes. Too little text for that many merges gives a smaller vocabulary.
        """
        smallest = len(CONTROL_NAMES) + 256
        if vocab_size < smallest:
            raise EtudeError(f"tokens.vocab_size is {vocab_size}: control tokens and bytes alone take {smallest}")
        encoder = _untrained()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[_spelling(name) for name in CONTROL_NAMES],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            max_token_length=LONGEST_TOKEN,
            show_progress=False,
        )
        # The library takes valid Unicode only.
        encoder.train_from_iterator((text.encode("utf-8", "replace").decode() for text in texts), trainer)
        # The trainer registers its special tokens for matching inside text. Taking them out of that list, while
        # they stay in the vocabulary, is what makes them impossible to spell.
        saved = json.loads(encoder.to_str())
        saved["added_tokens"] = []
        return cls(Encoder.from_str(json.dumps(saved)))

    @classmethod
    def load(cls, directory: Path | str) -> Tokenizer:
        path = Path(directory) / "tokenizer.json"
        try:
            encoder = Encoder.from_str(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise EtudeError(f"no tokenizer in {directory}: {path.name} is missing") from None
        except Exception as error:  # the library raises bare Exception for whatever it cannot read
            raise EtudeError(f"cannot read the tokenizer {path}: {error}") from None
        try:
            return cls(encoder)
        except EtudeError as error:
            raise EtudeError(f"{path}: {error}") from None

    def save(self, directory: Path | str) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json`; `transformers` opens the directory."""
        target = Path(directory)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": _spelling("pad"),
            "eos_token": _spelling("end_of_text"),
            "split_special_tokens": True,  # transformers, too, must not find control tokens in text
            "clean_up_tokenization_spaces": False,
            "fingerprint": self.fingerprint,
        }
        try:
            target.mkdir(parents=True, exist_ok=True)
            (target / "tokenizer.json").write_text(self._encoder.to_str(pretty=True), encoding="utf-8")
            (target / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise EtudeError(f"cannot write the tokenizer to {directory}: {error.strerror}") from None

    @cached_property
    def fingerprint(self) -> str:
        """Names what ids mean: equal for two tokenizers only when they encode and decode alike."""
        facts = [CONTROL_NAMES, PATTERN, [piece.hex() for piece in self._bytes], self._merges]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def is_control(self, token: int) -> bool:
        return 0 <= token < len(CONTROL_NAMES)

    def bytes_of(self, token: int) -> bytes:
        """The bytes that one id stands for, none for a control token: for decoding while ids arrive."""
        if not 0 <= token < self.vocab_size:
            raise EtudeError(f"token id {token} is outside the vocabulary of {self.vocab_size} entries")
        return self._bytes[token]

    def encode(self, text: str) -> list[int]:
        """Ids of a text; never a control token, whatever the text spells. Depends on the text's bytes alone."""
        if is_plain(text):
            return self._encoder.encode(text, add_special_tokens=False).ids
        ids: list[int] = []
        for piece in split_bytes(text):
            if isinstance(piece, int):
                ids.append(self._byte_ids[piece])
            else:
                ids.extend(self._encoder.encode(piece, add_special_tokens=False).ids)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts, on as many threads as RAYON_NUM_THREADS and TOKENIZERS_PARALLELISM allow."""
        ids: list[list[int]] = []
        for batch in batches(texts):
            if all(map(is_plain, batch)):
                encodings = self._encoder.encode_batch_fast(batch, add_special_tokens=False)
                ids.extend(encoding.ids for encoding in encodings)
            else:
                ids.extend(map(self.encode, batch))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; control tokens have none. Invalid UTF-8 becomes lone surrogates, so no byte is lost."""
        return to_text(b"".join(map(self.bytes_of, ids)))


def bound_cache(encoder: Encoder) -> None:
    """Lets the library remember fewer words than the 10,000 it would.

    Those it keeps are the first that came and are never replaced, so most of what 10,000 hold is no use. But they fill
    up over hundreds of steps of reinforcement learning, all of whose tasks bring a few new words: 4 MB that look like a
    leak, and in between them holes that nobody else can use.
    """
    resize = getattr(encoder.model, "_resize_cache", None)  # older libraries and other models have none
    if resize is not None:
        resize(CACHED_WORDS)


def to_bytes(text: str) -> bytes:
    """The bytes a text stands for: UTF-8, where U+DC80..U+DCFF are the bytes 80..FF themselves."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise EtudeError(
            f"the text holds U+{ord(text[error.start]):04X} at character {error.start}, half of a surrogate pair that "
            "stands for no byte: read files as UTF-8 with errors='surrogateescape'"
        ) from None


def to_text(data: bytes) -> str:
    """The one text that stands for these bytes.

    `to_text(to_bytes(x)) == x` unless lone surrogates of x, put together, are valid UTF-8: then it is that character.
    """
    return data.decode("utf-8", "surrogateescape")


def is_plain(text: str) -> bool:
    """Whether the library can take the text as it is, that is, whether it holds no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def split_bytes(text: str) -> Iterator[str | int]:
    """Runs of valid text, and single bytes that are not. Goes through bytes, since surrogates may spell valid UTF-8."""
    run: list[str] = []
    for character in to_text(to_bytes(text)):
        if 0xDC80 <= ord(character) <= 0xDCFF:
            if run:
                yield "".join(run)
                run.clear()
            yield ord(character) - 0xDC00
        else:
            run.append(character)
    if run:
        yield "".join(run)


def batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Texts in lists that the library may encode at once."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _untrained() -> Encoder:
    encoder = Encoder(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    encoder.decoder = decoders.ByteLevel()
    return encoder


def _around_model(saved: dict[str, Any]) -> dict[str, Any]:
    """All of a saved tokenizer but what training found: two that agree here differ in vocabulary and merges alone."""
    learned = ("vocab", "merges")
    model = {key: value for key, value in saved["model"].items() if key not in learned}
    return {**saved, "model": model}


def _byte_alphabet() -> dict[str, int]:
    """The printable character that the library's byte-level alphabet uses for each byte, turned around."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def byte_characters() -> dict[int, str]:
    """How the library's byte-level alphabet writes each byte."""
    return {byte: character for character, byte in _BYTE_OF.items()}


def token_bytes(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:
        raise EtudeError(f"the tokenizer's entry {token!r} is not byte-level: train a new one") from None

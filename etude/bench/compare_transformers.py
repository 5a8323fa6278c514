"""A checkpoint here and in `transformers`: the same tokens, and the largest difference of the logits.

Both ways of computing are compared with the reference's plain forward: whole sequences side by side, as training
does it, and through the engine's cache, a prompt in chunks and then token by token. `transformers` is an extra and is
imported only here; it never gets to open a pickle or to run code from the directory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.settings import EngineSettings
from etude.engine.cache import KeyValueCache
from etude.engine.row_attention import CachedAttend, spans
from etude.model.attention import PackedAttend
from etude.model.checkpoint.directory import load_model, open_stored
from etude.model.decoder import Decoder

LENGTHS = (1, 2, 17, 40, 40, 130)  # tokens of the sequences, as far as the model has positions
CHUNKS = (16, 1, 13)  # prompt tokens computed at a time through the cache, before single ones
SINGLE = 24  # tokens at the end that are computed one by one


def compare(directory: Path, seed: int = 0) -> dict[str, Any]:
    with open_stored(directory) as stored:
        if stored.quantised:
            raise EtudeError(
                f"{directory} is quantised: transformers would be given the weights that were dequantised here, which "
                "proves nothing, so only unquantised directories are compared"
            )
    ours = load_model(directory)  # first: it says in one sentence what is wrong with a directory
    theirs = reference(directory)
    sequences = random_tokens(ours, seed)
    with torch.inference_mode():
        expected = [theirs(tokens[None]).logits[0].float() for tokens in sequences]
        plain = _largest(packed_logits(ours, sequences), expected)
        cached = _largest(cached_logits(ours, sequences), expected)
    return {
        "max_abs_diff": plain,
        "max_abs_diff_cached": cached,
        "architecture": json.loads((directory / "config.json").read_text())["model_type"],
        "parameters": sum(parameter.numel() for parameter in ours.parameters()),
    }


def reference(directory: Path) -> Any:
    """The directory in transformers, in float32. Kimi shapes are DeepSeek-V3 with other numbers."""
    try:
        import transformers
    except ImportError:
        raise EtudeError("comparing needs transformers, which is not installed: pip install 'etude[hf]'") from None
    logging: Any = transformers.utils.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    config = json.loads((directory / "config.json").read_text())
    options: dict[str, Any] = {"dtype": torch.float32, "local_files_only": True}
    options |= {"use_safetensors": True, "trust_remote_code": False}
    kind: Any = transformers.AutoModelForCausalLM
    if config.get("model_type") == "kimi_k25":
        options |= {"key_mapping": {"^language_model[.]": ""}}
        config = config["text_config"] | {"model_type": "kimi_k2"}
    if config.get("model_type") == "kimi_k2":
        kind = transformers.DeepseekV3ForCausalLM
        options["config"] = transformers.DeepseekV3Config.from_dict(config | {"model_type": "deepseek_v3"})
    try:
        return kind.from_pretrained(directory, **options).eval()
    except (OSError, ValueError, RuntimeError, KeyError, AttributeError) as failed:
        raise EtudeError(f"transformers cannot open {directory}, which opens here: {_first_line(failed)}") from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def random_tokens(decoder: Decoder, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    longest = decoder.config.max_position_embeddings
    lengths = [min(length, longest) for length in LENGTHS]
    return [torch.randint(0, decoder.config.vocab_size, (length,), generator=generator) for length in lengths]


def packed_logits(decoder: Decoder, sequences: Sequence[Tensor]) -> list[Tensor]:
    """All sequences in one forward."""
    lengths = [len(tokens) for tokens in sequences]
    positions_T = torch.cat([torch.arange(length) for length in lengths])
    hidden_TD = decoder(torch.cat(list(sequences)), positions_T, PackedAttend(lengths))
    return list(torch.split(decoder.logits(hidden_TD), lengths))


def cached_logits(decoder: Decoder, sequences: Sequence[Tensor]) -> list[Tensor]:
    """Each sequence in a row of the engine's cache, all rows together: some chunks, then token by token."""
    longest = max(len(tokens) for tokens in sequences)
    settings = EngineSettings(max_running=len(sequences), max_length=max(longest, 2), cache_tokens=16)
    cache = KeyValueCache(decoder.config, settings, "cpu", decoder.lm_head.weight.dtype)
    done = [0] * len(sequences)
    logits: list[list[Tensor]] = [[] for _ in sequences]
    step = 0
    while any(start < len(tokens) for start, tokens in zip(done, sequences, strict=True)):
        rows = [row for row, tokens in enumerate(sequences) if done[row] < len(tokens)]
        starts = [done[row] for row in rows]
        counts = [_chunk(step + row, len(sequences[row]) - done[row]) for row in rows]
        chunks = [sequences[row][start : start + count] for row, start, count in zip(rows, starts, counts, strict=True)]
        positions_T = torch.cat([torch.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
        rows_T = torch.tensor(rows).repeat_interleave(torch.tensor(counts))
        attend = CachedAttend(cache, rows_T, positions_T, spans(rows, starts, counts))
        parts = torch.split(decoder.logits(decoder(torch.cat(chunks), positions_T, attend)), counts)
        for row, count, part in zip(rows, counts, parts, strict=True):
            logits[row].append(part)
            done[row] += count
        step += 1
    return [torch.cat(parts) for parts in logits]


def _chunk(step: int, left: int) -> int:
    """How many tokens a row computes next."""
    return 1 if left <= SINGLE else min(CHUNKS[step % len(CHUNKS)], left - SINGLE)


def _largest(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    difference = torch.cat(
        [(ours - theirs).abs().flatten() for ours, theirs in zip(found, expected, strict=True)]
    ).max()
    if not difference.isfinite():
        raise EtudeError("some logits are not finite, here or in transformers: the weights are damaged")
    return float(difference)

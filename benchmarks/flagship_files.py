"""What is carried away from a run of the flagship: the model in small files, and an archive of what is read later."""

from __future__ import annotations

import contextlib
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

SHARD = 15 << 20  # bytes of one file of weights; whoever carries them takes files under 16 MiB
ARCHIVE = 15 << 20
ROLLOUTS = 120  # newest rollouts of reinforcement learning that are carried away


def carry_model(model: Path, out: Path) -> None:
    """The model in bfloat16, in files that can be carried, with its tokenizer."""
    import torch

    from etude.model.checkpoint.directory import load_model, save_model

    shutil.rmtree(out, ignore_errors=True)
    save_model(out, load_model(model, "cpu"), torch.bfloat16, SHARD)
    for path in model.iterdir():
        if path.name.startswith(("tokenizer", "vocab", "merges", "special", "generation", "chat")) and path.is_file():
            shutil.copy2(path, out / path.name)


def write_archive(work: Path, out: Path) -> None:
    """Everything but weights and token shards; fewer rollouts where it would be too large."""
    for most in (ROLLOUTS, ROLLOUTS // 4, 0):
        with tarfile.open(out, "w:gz", compresslevel=6) as archive:
            for path in sorted(carried(work, most)):
                with contextlib.suppress(OSError):
                    archive.add(path, arcname=str(path.relative_to(work)))
        if out.stat().st_size < ARCHIVE:
            return


def carried(work: Path, rollouts: int) -> Iterator[Path]:
    yield from work.glob("*.json")
    yield from work.glob("logs/*.log")
    for pattern in ("run.json", "recipe.toml", "metrics.jsonl", "log", "best.json", "demos.jsonl", "results.json"):
        yield from work.glob(f"*/{pattern}")
    yield from work.glob("*/rl/logs/*")
    yield from work.glob("*/corpus/manifest.json")
    kept = work / "carried-model"
    yield from (path for path in kept.glob("*") if path.suffix != ".safetensors")
    for run in work.glob("rl*"):
        folders = sorted(path.parent for path in run.rglob("outcome.json"))
        for folder in folders[len(folders) - rollouts :] if rollouts else []:
            yield from (path for path in folder.rglob("*") if path.is_file() and path.stat().st_size < 1 << 20)

"""Recipes `repo-0.6b` and `repo-4b` on one GPU with random weights: do they fit, and what does a step cost?

    python benchmarks/doors/h200_repo_recipes.py --seconds 120 rl.groups=4
    python benchmarks/doors/h200_repo_recipes.py --tiny --steps 1 --tokens 16      # on a CPU, with models of two blocks

Nothing is downloaded. Weights of the shapes of Qwen3 0.6B and 4B are drawn on the spot, with a byte-level tokenizer of
their 151,643 entries and Qwen3's chat template; katas stand in for tasks of repositories, and a coin for the reward, as
random weights solve nothing and equal rewards have no gradient. Everything else is the recipe's: cache, lengths,
micro-batches, groups. Only the tokens of a rollout are fewer (`--tokens`), so that a step takes seconds: random weights
never end a turn, so every rollout takes all that it may. Each run is killed once its steps are there, before it would
write a checkpoint. Memory is what `nvidia-smi` says, twice a second, of each process where it may, else of the device.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.core.run_files import read_metrics
from etude.model.config import ModelConfig

ROOT = Path(__file__).parents[2]
SMALL = ModelConfig(151_936, 1024, 3072, 28, 16, 8, 128, rope_theta=1e6, max_position_embeddings=40_960)
SHAPES = {
    "repo-0.6b": SMALL,
    "repo-4b": replace(SMALL, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32),
}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "head_dim": 16}
TINY_SETTINGS = [
    "run.device=cpu",
    "run.threads=1",
    "engine.cache_tokens=65536",
    "rl.group=2",
    "rl.groups=2",
    "rl.micro_tokens=512",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
ENTRIES = 151_643  # of Qwen3's vocabulary, before the added tokens
COIN = """import zlib


def coin(rollout):
    return float(zlib.crc32(repr(rollout.trajectory.entries).encode()) % 2)
"""
# What a step is made of: the rows of metrics.jsonl.
SHOWN = ("seconds", "sampled_tokens", "trained_tokens", "rollout_tokens", "rollout_seconds", "sampling_seconds")
SHOWN += ("tools_seconds", "learner_busy", "engine_busy", "wait_data", "k3", "drift_mean", "drift_max", "grad_norm")


def write_tokenizer(folder: Path) -> None:
    """Byte pairs and some triples, in place of words: as many entries as Qwen3 has, in any order."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(one, two) for one in letters for two in letters]
    triples = [(one + two, three) for one, two in pairs for three in letters[:2]]
    merges = (pairs + triples)[: ENTRIES - len(letters)]
    names = [*letters, *(one + two for one, two in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in SPECIAL])
    tokenizer.add_tokens([AddedToken(one, special=False, normalized=False) for one in ADDED])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    shutil.copy(ROOT / "tests/templates/qwen3.jinja", folder / "chat_template.jinja")


def write_model(folder: Path, config: ModelConfig, device: str) -> None:
    import torch

    from etude.model.checkpoint.directory import save_model
    from etude.model.decoder import Decoder

    with torch.device(device):
        decoder = Decoder(config, 0)
    save_model(folder, decoder, torch.bfloat16)
    write_tokenizer(folder)


def memory() -> dict[str, float]:
    """GiB of the device's processes by what they are (`all` of the whole device); empty without `nvidia-smi`."""
    ask = ["nvidia-smi", "--format=csv,noheader,nounits"]
    found: dict[str, float] = {}
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        said = subprocess.run([*ask, "--query-gpu=memory.used"], capture_output=True, text=True, timeout=10).stdout
        found["all"] = int(said.split()[0]) / 1024
        said = subprocess.run(
            [*ask, "--query-compute-apps=pid,used_memory"], capture_output=True, text=True, timeout=10
        ).stdout
        for line in said.splitlines():
            pid, used = line.split(",")
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            name = next((word for word in words if word.startswith("etude.")), pid)
            found[name] = found.get(name, 0.0) + int(used) / 1024
    return found


def run(name: str, settings: list[str], folder: Path, steps: int, until: float) -> dict[str, Any]:
    """One recipe until its first rows are there, or the time is over."""
    home = folder / "runs" / name
    words = ["rl", name, f"rl.model={folder / name}", f"rl.tasks.path={folder / 'tasks'}", "--run", str(home)]
    words += [f'reward.parts=[{{use="{folder / "coin.py"}:coin"}}]', "rl.tasks.uses=1000", "rl.tasks.patience=1000"]
    began, most, rows = time.monotonic(), {}, []
    with (folder / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "etude", *words, *settings],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"ETUDE_STORE": str(folder / "store")},
        )
        try:
            while child.poll() is None and len(rows) < steps and time.monotonic() < until:
                for what, gib in memory().items():
                    most[what] = max(most.get(what, 0.0), gib)
                rows = [row for row in read_metrics(home) if row["stage"] == "rl" and "pass_rate" in row]
                time.sleep(0.5)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    found = {
        "recipe": name,
        "settings": settings,
        "seconds": round(time.monotonic() - began, 1),
        "memory_gib": {what: round(gib, 1) for what, gib in most.items()},
        "steps": [{key: round(row[key], 5) for key in SHOWN if key in row} for row in rows],
    }
    said = (folder / f"{name}.log").read_text(errors="replace")
    return found | {"log": said[-400 if rows else -3000 :]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default="repo-0.6b,repo-4b")
    parser.add_argument("--seconds", type=float, default=120.0, help="for everything")
    parser.add_argument("--steps", type=int, default=2, help="of each recipe")
    parser.add_argument("--tokens", type=int, default=512, help="that a rollout may sample")
    parser.add_argument("--tiny", action="store_true", help="two small blocks on the CPU: does the script work?")
    parser.add_argument("--folder", type=Path, help="where models and runs go (a temporary one if not said)")
    parser.add_argument("settings", nargs="*", help="KEY=VALUE for both recipes")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    names = options.recipes.split(",")
    with tempfile.TemporaryDirectory() as made:
        folder = (options.folder or Path(made)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "coin.py").write_text(COIN)
        katas = [sys.executable, "-m", "etude", "tasks", "katas", str(folder / "tasks"), "--count", "32"]
        subprocess.run(katas, check=True, timeout=60, stdout=subprocess.DEVNULL)
        failed = 0
        for number, name in enumerate(names):
            began = time.monotonic()
            shape = replace(SHAPES[name], **TINY) if options.tiny else SHAPES[name]
            write_model(folder / name, shape, "cpu" if options.tiny else "cuda")
            print(json.dumps({"model": name, "seconds_to_make": round(time.monotonic() - began, 1)}), flush=True)
            settings = [f"harness.limits.sampled_tokens={options.tokens}", *(TINY_SETTINGS if options.tiny else [])]
            left = (until - time.monotonic()) / (len(names) - number)
            share = time.monotonic() + (left if number + 1 == len(names) else min(left, options.seconds / 3))
            found = run(name, settings + options.settings, folder, options.steps, share)
            failed += not found["steps"]
            print(json.dumps(found), flush=True)
            shutil.rmtree(folder / name)  # 4B take 8 GB
    return failed


if __name__ == "__main__":
    raise SystemExit(main())

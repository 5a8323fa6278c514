"""Every test process: one torch thread and no denormals, before anything computes.

The suite runs in two processes on two cores; a second thread in each would only make them wait for each other.
Also the pieces that tests of whole commands share: the real `etude` in a child process, and a recipe that trains in
a second; and small tokenizers with chat templates in the manner of well-known checkpoints.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

from etude.process import prepare
from etude.sandbox.hosts import StoringHost, open_host
from etude.tasks.grader import RUNNER

prepare(threads=1)

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _threads_as_they_were() -> Iterator[None]:
    """A test that leaves torch with more threads changes the bits that later ones compare."""
    yield
    assert torch.get_num_threads() == 1


@pytest.fixture(scope="session")
def sandboxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.AbstractEventLoop, StoringHost]]:
    """Local sandboxes with the grader warm, and the loop that they live in."""
    loop = asyncio.new_event_loop()
    host = loop.run_until_complete(open_host("local", tmp_path_factory.mktemp("store"), [RUNNER]))
    yield loop, host
    loop.run_until_complete(host.close())
    loop.close()


CHAT = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
TOOLS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
CALLS = ["calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep", "output▁begin", "output▁end"]
KIMI = ["calls_section_begin", "calls_section_end", "call_begin", "call_argument_begin", "call_end"]
TEMPLATES: dict[str, dict[str, Any]] = {  # special tokens, ordinary added tokens, what ends a turn
    "qwen3": {"special": CHAT, "added": [*TOOLS, "<think>", "</think>"], "eos": "<|im_end|>"},
    "hermes": {"special": CHAT, "added": TOOLS, "eos": "<|im_end|>"},  # no token for thinking: it is only text
    "qwen_coder": {"special": CHAT, "added": [*TOOLS, "<think>", "</think>"], "eos": "<|im_end|>"},
    "deepseek": {
        "special": ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],
        "added": ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", *(f"<｜tool▁{name}｜>" for name in CALLS)],
        "eos": "<｜end▁of▁sentence｜>",
        "bos": "<｜begin▁of▁sentence｜>",
    },
    "kimi": {
        "special": [
            *("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
            *(f"<|tool_{name}|>" for name in KIMI),
        ],
        "added": ["<think>", "</think>"],
        "eos": "[EOS]",
    },
}
TEMPLATES["kimi_thinking"] = TEMPLATES["kimi"]


@pytest.fixture(scope="session")
def template_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each chat template in tests/templates, with a small byte-level tokenizer that has its tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    root = tmp_path_factory.mktemp("templates")
    words = r"'s|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    corpus = [
        Path(__file__).read_text(),
        "system user assistant tool\n\n" * 20,
        "read a.py\n\ndef f(x):\n    return x\n",
    ]
    for name, facts in TEMPLATES.items():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(words), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        inside = facts["special"] if name == "deepseek" else []  # its special tokens are in the vocabulary as well
        trainer = trainers.BpeTrainer(
            vocab_size=500, initial_alphabet=alphabet, special_tokens=inside, show_progress=False
        )
        tokenizer.train_from_iterator(corpus, trainer)
        tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in facts["special"]])
        tokenizer.add_tokens([AddedToken(one, special=False, normalized=False) for one in facts["added"]])
        folder = root / name
        folder.mkdir()
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": facts["eos"]}
        config |= {"bos_token": facts["bos"]} if "bos" in facts else {}
        template = (Path(__file__).parent / "templates" / f"{name}.jinja").read_text()
        if name.startswith(("qwen3", "kimi")):
            (folder / "chat_template.jinja").write_text(template)
        else:
            config["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        if name.startswith("kimi"):  # its eos_token is not what ends a turn
            ends = {"eos_token_id": tokenizer.token_to_id("<|im_end|>")}
            (folder / "generation_config.json").write_text(json.dumps(ends))
    return {name: root / name for name in TEMPLATES}


@pytest.fixture
def etude(tmp_path: Path) -> Command:
    """Run `etude ARGUMENTS...` in an empty folder, as a person would."""

    def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "etude.cli", *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, **({"cwd": tmp_path} | options)
        )

    return run


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A recipe of a toy model on a dozen small files: corpus and four steps take a second or two."""
    code = tmp_path / "code"
    code.mkdir()
    for number in range(12):
        lines = [f"def f{number}_{i}(x):\n    return x * {number * 37 + i * 11} + len(str(x))\n" for i in range(40)]
        (code / f"module{number}.py").write_text("\n".join(lines))
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(
        f"""
        [run]
        threads = 1
        [tokens]
        vocab_size = 400
        [model]
        width = 16
        layers = 1
        heads = 2
        kv_heads = 1
        head_dim = 8
        mlp = 32
        [corpus]
        sources = [{{ use = "folder", path = {json.dumps(str(code))} }}]
        near_threshold = 1.0
        held_out = 0.2
        [pretrain]
        steps = 4
        batch_tokens = 256
        micro_tokens = 128
        sequence = 64
        eval_every = 2
        eval_tokens = 256
        save_every = 2
        [sft]
        batch_tokens = 512
        micro_tokens = 512
        sequence = 256
        """
    )
    return recipe

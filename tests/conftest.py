"""Every test process: one torch thread and no denormals, before anything computes.

The suite runs in two processes on two cores; a second thread in each would only make them wait for each other.
Also the pieces that tests of whole commands share: the real `etude` in a child process, and a recipe that trains in
a second.
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

from etude.process import prepare
from etude.sandbox.hosts import StoringHost, open_host
from etude.tasks.grader import RUNNER

prepare(threads=1)

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def sandboxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.AbstractEventLoop, StoringHost]]:
    """Local sandboxes with the grader warm, and the loop that they live in."""
    loop = asyncio.new_event_loop()
    host = loop.run_until_complete(open_host("local", tmp_path_factory.mktemp("store"), [RUNNER]))
    yield loop, host
    loop.run_until_complete(host.close())
    loop.close()


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

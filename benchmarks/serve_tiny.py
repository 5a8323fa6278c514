"""A tiny model that knows two answers by heart, and `etude serve` as a process of its own.

Owns how they are made, started and ended, for `serve_soak.py`, `serve_agent.py` and the tests of the engine. Knows
nothing of what is asked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.core.policy import Assistant, Call, Message, User

READY = "etude engine ready at"
NAME = "tiny"
TEXT = "Hello, wörld! € 🎉 done\nI think of naïve things: read a.py, echo hello; say hello, call the tool. café <b> x"
EXAMPLES: list[tuple[list[Message], Assistant]] = [
    ([User("say hello")], Assistant("short: naïve €", "Hello, wörld! € 🎉 done")),
    (
        [User("call the tool")],
        Assistant(
            "I read.", "Reading.", (Call("read", {"path": "a.py", "line": "3"}), Call("bash", {"command": "echo"}))
        ),
    ),
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Read a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
            },
        },
    },
    {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}},
]


def train_tiny(
    folder: Path, examples: Sequence[tuple[Sequence[Message], Assistant]] = EXAMPLES, text: str = TEXT
) -> None:
    """A model that answers the examples by heart and anything else with whatever comes."""
    import torch

    from etude.model.attention import PackedAttend
    from etude.model.checkpoint.directory import save_model
    from etude.model.config import ModelConfig
    from etude.model.decoder import Decoder
    from etude.tokens.render import render
    from etude.tokens.tokenizer import Tokenizer

    torch.set_num_threads(1)
    tokenizer = Tokenizer.train([text] * 3, 320)
    rows = []
    for messages, turn in examples:
        start = len(render(messages, tokenizer, open_turn=True).ids)
        rows.append((render([*messages, turn], tokenizer, open_turn=False).ids, start))
    lengths = [len(ids) for ids, _ in rows]
    tokens_T = torch.tensor([token for ids, _ in rows for token in ids])
    positions_T = torch.cat([torch.arange(length) for length in lengths])
    starts = [sum(lengths[:i]) for i in range(len(rows))]
    learnt = torch.cat(
        [torch.arange(at + first, at + size) for at, (_, first), size in zip(starts, rows, lengths, strict=True)]
    )
    decoder = Decoder(ModelConfig(tokenizer.vocab_size, 48, 96, 2, 4, 2, 12, max_position_embeddings=4096), 0)
    optimiser = torch.optim.AdamW(decoder.parameters(), lr=5e-3)
    for _ in range(400):
        logits = decoder.logits(decoder(tokens_T, positions_T, PackedAttend(lengths)))
        loss = torch.nn.functional.cross_entropy(logits[learnt - 1], tokens_T[learnt])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss.item() < 0.01:
            break
    save_model(folder, decoder)
    tokenizer.save(folder)


@dataclass
class Server:
    process: subprocess.Popen[str]
    address: str
    log: Path
    key: str | None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@contextlib.contextmanager
def served(model: Path, log: Path, *options: str, key: str | None = None) -> Iterator[Server]:
    """`etude serve` as a user starts it, on a free port; ended with SIGTERM if it still runs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"ETUDE_API_KEY": key} if key else {})
    command = [sys.executable, "-m", "etude", "serve", str(model), "--port", "0", "--name", NAME, *options]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(READY):
            raise RuntimeError(f"the server said {line!r}; its log: {log.read_text()[-2000:]}")
        yield Server(process, line.removeprefix(READY).strip(), log, key)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

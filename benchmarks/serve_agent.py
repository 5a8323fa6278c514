"""mini-swe-agent as a client of `etude serve`: its whole loop, with a model that always calls its tool.

    python -m venv agent && agent/bin/pip install mini-swe-agent mcp
    python benchmarks/serve_agent.py agent/bin/mini [--steps 8]

The package brings some 700 MB with it, so it lives in an environment of its own and this check is no part of the test
suite; litellm, through which it asks, needs `mcp` and does not bring it. The model is a chain of tokens (its attention
adds nothing), so that it calls `bash` whatever it is told. The agent must reach its step limit with one call and one
result a step and no error of the protocol. Prints one JSON object as its last line and exits 1 if that did not happen.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from serve_tiny import NAME, served

from etude.core.policy import Assistant, Call, User

COMMAND = "pwd"
TURN = Assistant(calls=(Call("bash", {"command": COMMAND}),))
LENGTH = 32768


def train_caller(folder: Path) -> None:
    """A model that ends every conversation with the same call."""
    import torch

    from etude.model.attention import PackedAttend
    from etude.model.checkpoint.directory import save_model
    from etude.model.config import ModelConfig
    from etude.model.decoder import Decoder
    from etude.tokens.render import render
    from etude.tokens.tokenizer import Tokenizer

    torch.set_num_threads(1)
    tokenizer = Tokenizer.train([f"bash command {COMMAND}\nbash\ncommand\n{COMMAND}"] * 9, 320)
    ids = render([User("?"), TURN], tokenizer, open_turn=False).ids
    start = len(render([User("?")], tokenizer, open_turn=True).ids)
    chain = ids[start - 1 :]
    assert len(set(chain)) == len(chain), "a token comes twice, so it cannot say what follows it"
    decoder = Decoder(ModelConfig(tokenizer.vocab_size, 32, 64, 1, 2, 1, 16, max_position_embeddings=LENGTH), 0)
    for name, parameter in decoder.named_parameters():
        if "o_proj" in name:
            torch.nn.init.zeros_(parameter)
            parameter.requires_grad_(False)
    tokens_T, positions_T = torch.tensor(chain), torch.arange(len(chain))
    optimiser = torch.optim.AdamW([p for p in decoder.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(200):
        logits = decoder.logits(decoder(tokens_T, positions_T, PackedAttend([len(chain)])))
        loss = torch.nn.functional.cross_entropy(logits[:-1], tokens_T[1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.01, f"the chain was not learnt: {loss.item()}"
    save_model(folder, decoder)
    tokenizer.save(folder)


def run_agent(mini: Path, address: str, steps: int, folder: Path, key: str) -> dict[str, Any]:
    """What the agent did, from its own record of the run."""
    settings = [
        f"agent.step_limit={steps}",
        "agent.mode=yolo",
        f"model.model_kwargs.api_base={address}/v1",
        "model.model_kwargs.temperature=0",
        "model.cost_tracking=ignore_errors",
    ]
    command = [str(mini), "-m", f"openai/{NAME}", "-t", "Say where you are.", "-y", "--exit-immediately"]
    command += ["-o", str(folder / "run.json"), "--agent-class", "default", "-c", "mini.yaml"]
    command += [part for setting in settings for part in ("-c", setting)]
    environment = {**os.environ, "OPENAI_API_KEY": key, "MSWEA_CONFIGURED": "true", "HOME": str(folder)}
    environment |= {"MSWEA_SILENT_STARTUP": "1", "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1"}
    environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # nothing is looked up elsewhere
    begin = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    if not (folder / "run.json").exists():
        return {"problem": (done.stdout + done.stderr)[-2000:]}
    record = json.loads((folder / "run.json").read_text())
    roles = [message["role"] for message in record["messages"]]
    return {
        "exit_status": record["info"].get("exit_status"),
        "requests": record["info"]["model_stats"]["api_calls"],
        "calls": sum(len(message.get("tool_calls") or []) for message in record["messages"]),
        "results": roles.count("tool"),
        "seconds": round(time.monotonic() - begin, 1),
        "end": (done.stdout + done.stderr)[-500:] if done.returncode else "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mini", type=Path, help="the `mini` command of mini-swe-agent")
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, key = Path(name), "key-of-the-agent"
        train_caller(folder / "model")
        limits = (f"engine.max_length={LENGTH}", f"engine.cache_tokens={2 * LENGTH}", "engine.max_running=1")
        with served(folder / "model", folder / "server.log", *limits, key=key) as server:
            found = run_agent(options.mini.absolute(), server.address, options.steps, folder, key)
        found["log"] = (folder / "server.log").read_text()[-500:]
    wanted = {"exit_status": "LimitsExceeded", "requests": options.steps, "calls": options.steps}
    found["ok"] = {name: found.get(name) for name in wanted} == wanted and found["results"] == options.steps
    print(json.dumps(found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())

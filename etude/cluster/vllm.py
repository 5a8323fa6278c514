"""Starts a vLLM server as an engine of the training loop: its command line and its program.

vLLM lives in an environment of its own (it pins torch), which `cluster.vllm_python` names; this package has to be
installed there too, for its plugin (docs/operate/engines.md). Imports neither torch nor vLLM.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from etude.cluster.placement import Program
from etude.core.errors import EtudeError
from etude.core.settings import EngineSettings

READY = "vllm ready at"  # what vllm_server prints
BACKEND = "etude"  # name of our plugin's weight-transfer backend


def check_model(model: Path, device: str) -> None:
    """Refuses what vLLM is known to compute wrongly."""
    try:
        kind = json.loads((model / "config.json").read_text()).get("model_type")
    except (OSError, ValueError) as error:
        raise EtudeError(f"{model} has no config.json that can be read: {error}") from None
    if device == "cpu" and kind == "deepseek_v3":
        raise EtudeError(
            "vLLM on a CPU computes deepseek_v3 wrongly (log-probabilities 1.4 nats off); use cluster.engine = 'etude'"
        )


def link_weights(model: Path, folder: Path) -> None:
    """Links to the model's files without the optimiser's: vLLM loads every safetensors file that it finds."""
    for file in model.absolute().iterdir():
        if file.suffix != ".safetensors" or file.name.startswith("model"):
            (folder / file.name).symlink_to(file)


def command(model: Path, settings: EngineSettings, *, python: str, device: str, socket: Path) -> list[str]:
    """The command line of a server that listens on a local socket."""
    return [
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--uds", str(socket)),
        *("--skip-tokenizer-init", "--enable-scale-out", "--enable-prompt-tokens-details"),
        # of the distribution sampled from: the learner applies the same temperature
        *("--logprobs-mode", "processed_logprobs"),
        *("--weight-transfer-config", json.dumps({"backend": BACKEND})),
        *("--max-model-len", str(settings.max_length), "--max-num-seqs", str(settings.max_running)),
        *("--dtype", "float32" if device == "cpu" else "bfloat16"),
        *(("--enforce-eager",) if device == "cpu" else ()),
    ]


def environment(device: str, threads: int) -> dict[str, str]:
    """What vLLM reads from its environment, beside ours."""
    found = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}  # the first opens the routes for weights
    if device == "cpu":
        found |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # GiB
        found["OMP_NUM_THREADS"] = str(max(1, threads))
    return found


def vllm_program(
    name: str,
    log: Path | None,
    model: Path,
    settings: EngineSettings,
    python: str,
    *,
    device: str = "cpu",
    threads: int = 1,
    seconds: float = 400.0,
) -> Program:
    """The program that serves the model by vLLM; its client attaches it to the chain of weights."""
    check_model(model, device)
    told = {"model": str(model.absolute()), "settings": vars(settings), "python": python, "device": device}
    arguments = (json.dumps(told | {"threads": threads, "seconds": seconds}),)
    return Program(name, "etude.cluster.vllm_server", arguments, READY, log)


def interpreter(python: str) -> str:
    """The interpreter of vLLM's environment; refused where there is none."""
    if not python:
        raise EtudeError("cluster.engine = 'vllm' needs cluster.vllm_python, the interpreter of vLLM's environment")
    path = Path(python).expanduser()
    if not os.access(path, os.X_OK):
        raise EtudeError(f"cluster.vllm_python is {python!r}, which is no program here")
    return str(path.absolute())

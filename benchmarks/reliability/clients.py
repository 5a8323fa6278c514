"""Other people's clients against `etude serve` with a tiny model: chat, tools, structured output, logprobs, streaming.

    python benchmarks/reliability/clients.py [--clients openai,litellm,...] [--venvs FOLDER] [--json]

Each client gets a virtual environment of its own under FOLDER (a temporary folder if not said; one that is there is
used again) and runs a program of its own there, as its documentation shows it. The table says what passed. A model
that knows two answers by heart is enough: what is measured is whether both sides understand each other. `inspect-ai`,
`verifiers` and `lm-eval` run an evaluation, `pydantic-ai` an agent, the others their calls. Installing takes about five
minutes, the run two.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from serve_tiny import EXAMPLES, NAME, Server, served, train_tiny

from etude.core.policy import Assistant, Call, User

CHECKS = ("chat", "stream", "tools", "structured", "logprobs")
PACKAGES = {
    "openai": ["openai"],
    "litellm": ["litellm", "mcp"],
    "langchain-openai": ["langchain-openai"],
    "pydantic-ai": ["pydantic-ai-slim[openai]"],
    "inspect-ai": ["inspect-ai", "openai"],
    "verifiers": ["verifiers==0.1.14"],  # from 0.2 on it has another interface, which the program does not use
    "lm-eval": ["lm-eval[api]", "transformers"],
    "curl": [],
}
# A forced call begins without the thinking that stands before calls elsewhere. A model that had never seen that would
# write digits until its context is full, which no grammar of whole numbers forbids.
FORCED = ([User("call the tool")], Assistant("", "", (Call("read", {"path": "a.py", "line": "3"}),)))
PROGRAMS = Path(__file__).with_name("client_programs")
SECONDS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default=",".join(PACKAGES))
    parser.add_argument("--venvs", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, venvs = Path(folder) / "model", options.venvs or Path(folder) / "venvs"
        train_tiny(model, [*EXAMPLES, FORCED])
        limits = ("engine.max_length=512", "run.threads=1")
        with served(model, Path(folder) / "log", *limits, key="key-of-the-clients") as server:
            found = {name: run_client(name, server, venvs, model) for name in options.clients.split(",")}
    if options.json:
        print(json.dumps(found))
        return
    print(f"| client | {' | '.join(CHECKS)} |\n|---|{'---|' * len(CHECKS)}")
    for name, checks in found.items():
        print(f"| {name} | {' | '.join(checks.get(check, '') for check in CHECKS)} |")
    for name, checks in found.items():
        for check, said in checks.items():
            if said not in ("passed", "does not ask for it"):
                print(f"\n{name}, {check}: {said}")


def run_client(name: str, server: Server, venvs: Path, model: Path) -> dict[str, str]:
    """What came of each check: `passed`, or why not."""
    python = sys.executable
    if PACKAGES[name]:
        venv = venvs / name
        python = str(venv / "bin" / "python")
        if not venv.exists():
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
            subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES[name]], check=True)
    environment = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "TMPDIR")}
    environment |= {"BASE_URL": f"{server.address}/v1", "MODEL": NAME, "KEY": server.key or "", "FOLDER": str(model)}
    with tempfile.TemporaryDirectory() as work:
        program = PROGRAMS / f"{name.replace('-', '_')}_program.py"
        try:
            done = subprocess.run(
                [python, str(program)], capture_output=True, text=True, cwd=work, env=environment, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return {"chat": f"did not end within {SECONDS} s"}
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith("CHECK "):
            check, _, said = line.removeprefix("CHECK ").partition(" ")
            found[check] = said
    return found or {"chat": "no check ran: " + done.stderr.strip()[-600:]}


if __name__ == "__main__":
    main()

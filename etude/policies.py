"""Policies by name: scripts, cheats, and engines by their address.

Stands above the rooms because it knows both where scripts are made (forge) and where models answer (engine).
"""

from __future__ import annotations

from etude.engine.client import EngineClient
from etude.errors import EtudeError
from etude.forge.cheats.table import cheat_script
from etude.forge.scripted import Scripted, scripted
from etude.policy import Policy
from etude.tasks.format import Task
from etude.tokens.tokenizer import Tokenizer


def make_policy(name: str, task: Task, tokenizer: Tokenizer | None = None, seed: int = 0) -> Policy:
    """`reference`, `null`, `stub`, `cheat:NAME`, or an engine's address (`unix:/path`, `http://host:port`)."""
    if name.startswith(("unix:", "http://", "https://")):
        if tokenizer is None:
            raise EtudeError(f"the engine at {name} needs the tokenizer of its model; give the model's folder")
        return EngineClient(name, decode=tokenizer.decode)
    if name.startswith("cheat:"):
        return Scripted(cheat_script(name.removeprefix("cheat:"), task), tokenizer)
    return scripted(name, task, seed, tokenizer)

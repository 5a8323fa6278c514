"""Etude trains coding agents in the open: pretraining, fine-tuning, reinforcement learning, serving.

What a notebook imports is here (docs/extend/library.md): each name is loaded from its room when it is first asked for,
so that `import etude` itself is instant, and works in a sandbox that holds little more than this file. Everything else
is inside, and may move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etude.bench.run_data import RunData, read_run
    from etude.core.errors import EtudeError
    from etude.core.policy import Sampling, Version
    from etude.core.recipe import Recipe
    from etude.core.recipe import load as load_recipe
    from etude.core.version import __version__
    from etude.engine.engine import Engine
    from etude.learn.learner import Learner
    from etude.learn.streams import Batch, Item, Label, Stream
    from etude.model.checkpoint.directory import load_model
    from etude.model.decoder import Decoder
    from etude.pipeline.find_model import find_model
    from etude.policies.table import make_policy
    from etude.rollout.rollout import Scored, Void, build_setup, run_rollout, temporary_host
    from etude.sandbox.hosts import open_host
    from etude.tasks.format.task import Task
    from etude.tasks.grade import grade
    from etude.tokens.dialect import open_dialect

    load_task = Task.load

_HOME = {  # name -> where it is made, as "module:attribute"
    "__version__": "etude.core.version:__version__",
    "EtudeError": "etude.core.errors:EtudeError",
    "Recipe": "etude.core.recipe:Recipe",
    "load_recipe": "etude.core.recipe:load",
    "RunData": "etude.bench.run_data:RunData",
    "read_run": "etude.bench.run_data:read_run",
    "Task": "etude.tasks.format.task:Task",
    "load_task": "etude.tasks.format.task:Task.load",
    "open_host": "etude.sandbox.hosts:open_host",
    "temporary_host": "etude.rollout.rollout:temporary_host",
    "make_policy": "etude.policies.table:make_policy",
    "build_setup": "etude.rollout.rollout:build_setup",
    "run_rollout": "etude.rollout.rollout:run_rollout",
    "Scored": "etude.rollout.rollout:Scored",
    "Void": "etude.rollout.rollout:Void",
    "grade": "etude.tasks.grade:grade",
    "find_model": "etude.pipeline.find_model:find_model",
    "load_model": "etude.model.checkpoint.directory:load_model",
    "open_dialect": "etude.tokens.dialect:open_dialect",
    "Decoder": "etude.model.decoder:Decoder",
    "Engine": "etude.engine.engine:Engine",
    "Sampling": "etude.core.policy:Sampling",
    "Version": "etude.core.policy:Version",
    "Learner": "etude.learn.learner:Learner",
    "Batch": "etude.learn.streams:Batch",
    "Item": "etude.learn.streams:Item",
    "Label": "etude.learn.streams:Label",
    "Stream": "etude.learn.streams:Stream",
}

__all__ = [
    "Batch",
    "Decoder",
    "Engine",
    "EtudeError",
    "Item",
    "Label",
    "Learner",
    "Recipe",
    "RunData",
    "Sampling",
    "Scored",
    "Stream",
    "Task",
    "Version",
    "Void",
    "__version__",
    "build_setup",
    "find_model",
    "grade",
    "load_model",
    "load_recipe",
    "load_task",
    "make_policy",
    "open_dialect",
    "open_host",
    "read_run",
    "run_rollout",
    "temporary_host",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'etude' has no attribute {name!r}")
    import importlib
    from functools import reduce

    module, _, attribute = _HOME[name].partition(":")
    found = reduce(getattr, attribute.split("."), importlib.import_module(module))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)

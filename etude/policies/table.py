"""Policies by name: scripts, attacks, engines by their address, and hosted models.

The scripts of attacks belong to the gates that tasks pass, in a room above this one: they are found by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from urllib.parse import parse_qsl

from etude.core.component import UPWARD, load_named
from etude.core.errors import EtudeError
from etude.core.policy import Policy
from etude.core.settings import EndpointSettings
from etude.harness.text_turns import write_turn
from etude.harness.tools.base import Tool, schema_of
from etude.policies.endpoint.policy import EndpointPolicy
from etude.policies.engine_client import EngineClient
from etude.policies.scripted import SCRIPTS, Scripted, scripted
from etude.tasks.format.task import Task
from etude.tokens.dialect import Dialect

ADDRESSES = ("unix:", "http://", "https://")  # of engines
HOSTED = "openai"  # policies of this name speak the OpenAI-compatible interface


def make_policy(name: str, task: Task, dialect: Dialect | None = None, seed: int = 0) -> Policy:
    """`reference`, `null`, `stub`, `attack:NAME`, or an engine's address (`unix:/path`, `http://host:port`).

    `cheat:NAME` is what attacks were called in earlier versions.
    A hosted model is made by `hosted_policy`: it serves any number of tasks.
    """
    if name.startswith(ADDRESSES):
        if dialect is None:
            raise EtudeError(f"the engine at {name} needs the tokenizer of its model; give the model's folder")
        return EngineClient(name, decode=dialect.decode)
    if name.startswith(("attack:", "cheat:")):
        attack_script = load_named(UPWARD["policy attack"])
        return Scripted(attack_script(name.partition(":")[2], task), dialect)
    return scripted(name, task, seed, dialect)


def needs_no_model(name: str) -> bool:
    """Whether this names a script, an attack or an address, and not the folder of a model."""
    return name in SCRIPTS or is_hosted(name) or name.startswith(("attack:", "cheat:", *ADDRESSES))


def is_hosted(name: str) -> bool:
    return name == HOSTED or name.startswith(f"{HOSTED}:")


def hosted_policy(
    name: str, settings: EndpointSettings, tools: Mapping[str, Tool], dialect: Dialect | None = None
) -> EndpointPolicy:
    """`openai` as the settings say, or `openai:URL?model=NAME`. With a dialect it samples token ids."""
    address, _, query = name.removeprefix(HOSTED).removeprefix(":").partition("?")
    # A model's name may hold a plus sign, which a query would turn into a blank.
    given = dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))
    if unknown := [key for key in given if key != "model"]:
        raise EtudeError(
            f"the policy {HOSTED}:URL?model=NAME takes no {unknown[0]!r}: set endpoint.{unknown[0]} instead"
        )
    settings = dataclasses.replace(settings, url=address or settings.url, model=given.get("model", settings.model))
    if dialect is not None and not settings.ids:
        raise EtudeError("endpoint.ids is off, so the hosted model answers with text: give no folder of a tokenizer")
    schemas = [schema_of(tool) for tool in tools.values()]
    return EndpointPolicy(
        settings, write_turn=write_turn, tools=schemas, decode=dialect.decode if dialect is not None else None
    )

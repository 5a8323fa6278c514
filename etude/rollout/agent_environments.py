"""Which tools an agent has in which tasks, and whether its calls must be exact: `harness.environments` of a recipe.

    [harness.environments."feature deletion"]
    tools = ["read", "edit", "finish"]
    strict = false

The name is a task's category or family; a family's own entry comes before that of its category. Tasks that no entry
names have all tools of `harness.tools`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pydantic

from etude.core.errors import EtudeError
from etude.core.recipe import hint, validate
from etude.core.settings import HarnessSettings
from etude.harness.prompt import Spec, system_text
from etude.harness.tools.base import Tool
from etude.tasks.format.task import Task


class EnvironmentSettings(pydantic.BaseModel, extra="forbid", frozen=True):
    """One entry."""

    tools: list[str] | None = pydantic.Field(None, description="names of the tools that there are; all if left out")
    strict: bool | None = pydantic.Field(None, description="as harness.strict, for these tasks")


@dataclass(frozen=True)
class AgentEnvironment:
    """What an agent finds in a kind of task."""

    tools: dict[str, Tool]
    system: str
    strict: bool


def build_environments(
    harness: HarnessSettings, tools: dict[str, Tool], spec: Spec, *, text_form: bool
) -> dict[str, AgentEnvironment]:
    """By category or family; under "" stands what all other tasks have."""
    found = {}
    for name, entry in {"": {}, **harness.environments}.items():
        where = f"harness.environments.{name}"
        for key in entry:
            if key not in EnvironmentSettings.model_fields:
                raise EtudeError(f"unknown key {where}.{key}; an environment takes tools and strict")
        given = validate(pydantic.TypeAdapter(EnvironmentSettings), entry, where)
        for wanted in given.tools or ():
            if wanted not in tools:
                near = hint(wanted, list(tools)) or f"; there are {', '.join(tools)}"
                raise EtudeError(f"{where}.tools: harness.tools has no {wanted!r}{near}")
        chosen = {key: tool for key, tool in tools.items() if given.tools is None or key in given.tools}
        system = system_text(harness.system, chosen, spec, text_form=text_form)
        found[name] = AgentEnvironment(chosen, system, harness.strict if given.strict is None else given.strict)
    return found


def environment_of(task: Task, environments: Mapping[str, AgentEnvironment]) -> AgentEnvironment | None:
    """The task's own, or that of all others; None where a setup has none at all."""
    names = (task.facts.family, task.facts.category, "")
    return next((environments[name] for name in names if name in environments), None)

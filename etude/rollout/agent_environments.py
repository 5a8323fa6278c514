"""Which tools and limits an agent has in which tasks, and whether its calls must be exact: `harness.environments`.

    [harness.environments."feature deletion"]
    tools = ["read", "edit", "finish"]
    limits = { turns = 8 }
    strict = false

The name is a task's category or family; a family's own entry comes before that of its category. Tasks that no entry
names have all tools of `harness.tools`; those without a sandbox have the ones that need none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pydantic

from etude.core.errors import EtudeError
from etude.core.recipe import changed, hint, validate
from etude.core.settings import AgentLimits, HarnessSettings
from etude.harness.prompt import Spec, system_text
from etude.harness.tools.base import Tool

WITHOUT_SANDBOX: Final = "without a sandbox"


class EnvironmentSettings(pydantic.BaseModel, extra="forbid", frozen=True):
    """One entry."""

    tools: list[str] | None = pydantic.Field(None, description="names of the tools that there are; all if left out")
    limits: dict[str, Any] = pydantic.Field({}, description="keys of harness.limits that differ for these tasks")
    system: str | None = pydantic.Field(None, description="as harness.system, for these tasks")
    strict: bool | None = pydantic.Field(None, description="as harness.strict, for these tasks")


@dataclass(frozen=True)
class AgentEnvironment:
    """What an agent finds in a kind of task."""

    tools: dict[str, Tool]
    system: str
    strict: bool
    limits: AgentLimits | None = None  # None: those of all tasks


def build_environments(
    harness: HarnessSettings, tools: dict[str, Tool], spec: Spec, *, text_form: bool
) -> dict[str, AgentEnvironment]:
    """By category or family; under `WITHOUT_SANDBOX` stands what other tasks without a sandbox have."""
    found = {}
    words = [name for name, tool in tools.items() if not tool.uses_sandbox]
    for name, entry in {WITHOUT_SANDBOX: {"tools": words, "system": ""}, **harness.environments}.items():
        where = f"harness.environments.{name}"
        for key in entry:
            if key not in EnvironmentSettings.model_fields:
                raise EtudeError(f"unknown key {where}.{key}; an environment takes tools, limits, system and strict")
        given = validate(pydantic.TypeAdapter(EnvironmentSettings), entry, where)
        for wanted in given.tools or ():
            if wanted not in tools:
                near = hint(wanted, list(tools)) or f"; there are {', '.join(tools)}"
                raise EtudeError(f"{where}.tools: harness.tools has no {wanted!r}{near}")
        chosen = {key: tool for key, tool in tools.items() if given.tools is None or key in given.tools}
        first = harness.system if given.system is None else given.system
        found[name] = AgentEnvironment(
            chosen,
            system_text(first, chosen, spec, text_form=text_form),
            harness.strict if given.strict is None else given.strict,
            changed(harness.limits, given.limits, f"{where}.limits") if given.limits else None,
        )
    return found

"""What a tool is: a name, a line about it, its arguments, its settings, and one async method.

Arguments arrive as text, exactly as sampled; the declarations here turn them into values, and say in an observation
what is wrong with them. Knows no particular tool.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pydantic

from etude.harness.failures import ErrorClass, ToolError
from etude.harness.tool_context import ToolContext
from etude.tokens.dialect import ToolSchema

UNREADABLE = (
    "unreadable_arguments"  # stands for all arguments of a native call that are no JSON object; holds their text
)


@dataclass(frozen=True)
class Argument:
    """One argument of a tool."""

    name: str
    doc: str  # one line, for the model
    kind: Literal["text", "integer", "flag"] = "text"
    required: bool = True
    least: int | None = None  # of an integer


@dataclass(frozen=True)
class Observation:
    """What the model sees of a call."""

    text: str
    error: ErrorClass | None = None
    ends: bool = False  # the rollout is over
    note: str = ""  # for people: the model never sees it


class Tool:
    """Base of all tools. One instance serves many rollouts at once: what it remembers goes to `context.state`."""

    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        """What a recipe may set."""

    name: ClassVar[str]
    description: ClassVar[str]  # one line, for the model
    arguments: ClassVar[tuple[Argument, ...]] = ()
    uses_sandbox: ClassVar[bool] = True  # False: it works where there are no files and no programs, too
    reads_only: ClassVar[bool] = False  # changes nothing, so neighbours of its kind in one turn run at the same time

    samples: ClassVar[bool] = (
        False  # asks the policy, whose time is not a tool's: each sample has a deadline of its own
    )

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    async def begin(self, context: ToolContext) -> None:
        """Called once before the first turn, for what has to be known of the workspace as it was; mostly nothing."""

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        """Do it. `arguments` holds what was given, converted; raise `ToolError` for what the model should read."""
        raise NotImplementedError

    def remembered(self, context: ToolContext) -> str:
        """What a context that begins with a summary must be told again of this tool's memory; mostly nothing."""
        return ""


def schema_of(tool: Tool) -> ToolSchema:
    """The tool as chat templates and other people's clients know it."""
    kinds = {"text": "string", "integer": "integer", "flag": "boolean"}
    fields: dict[str, dict[str, Any]] = {}
    for argument in tool.arguments:
        fields[argument.name] = {"type": kinds[argument.kind], "description": argument.doc}
        if argument.least is not None:
            fields[argument.name]["minimum"] = argument.least
    required = [argument.name for argument in tool.arguments if argument.required]
    return ToolSchema(tool.name, tool.description, {"type": "object", "properties": fields, "required": required})


def read_arguments(tool: Tool, given: Mapping[str, str], *, strict: bool = True) -> dict[str, Any]:
    """The arguments of a call as the tool declares them, or a `ToolError` that says what is wrong.

    Without `strict` an argument that the tool does not know is taken for the nearest one, or else left out.
    """
    if UNREADABLE in given:
        raise ToolError("InvalidArguments", _unreadable(tool.name, given[UNREADABLE]))
    declared = {argument.name: argument for argument in tool.arguments}
    if not strict:
        given = corrected(given, declared)
    for name in given:
        if name not in declared:
            takes = ", ".join(declared) or "no arguments"
            near = nearest(name, declared)
            raise ToolError("InvalidArguments", f"{tool.name} takes {takes}, not {quoted(name)}{near}")
    for argument in tool.arguments:
        if argument.required and argument.name not in given:
            raise ToolError("InvalidArguments", f"{tool.name} needs {argument.name}: {argument.doc}")
    return {name: _value(declared[name], text) for name, text in given.items()}


def corrected(given: Mapping[str, str], declared: Iterable[str]) -> dict[str, str]:
    """The arguments of a call that need not be exact, by the names that the tool knows."""
    declared = list(declared)
    taken = {name: text for name, text in given.items() if name in declared}
    for name in given:
        if name not in declared and (near := difflib.get_close_matches(name[:40].lower(), declared, 1)):
            taken.setdefault(near[0], given[name])
    return taken


def _unreadable(name: str, raw: str) -> str:
    kinds: dict[type, str] = {list: "it is a list", str: "it is text"}
    try:
        why = kinds.get(type(json.loads(raw)), "it is a single value")
    except json.JSONDecodeError as error:
        why = f"{error.msg} at character {error.pos + 1} of {len(raw)}"
    except (ValueError, RecursionError):
        why = "it is nested too deeply"
    return f"the arguments of {name} are not a JSON object: {why}; they begin with {quoted(raw)}"


def _value(argument: Argument, text: str) -> str | int | bool:
    match argument.kind:
        case "text":
            return text
        case "flag":
            if text.strip().lower() not in ("true", "false"):
                raise ToolError("InvalidArguments", f"{argument.name} is {quoted(text)}, not true or false")
            return text.strip().lower() == "true"
        case "integer":
            digits = text.strip()
            # ASCII digits, and few of them: int() takes other scripts, underscores, and forever for a million digits.
            if not (digits.removeprefix("-").isascii() and digits.removeprefix("-").isdigit() and len(digits) < 16):
                raise ToolError("InvalidArguments", f"{argument.name} is {quoted(text)}, not a whole number")
            if argument.least is not None and int(digits) < argument.least:
                raise ToolError("InvalidArguments", f"{argument.name} is {int(digits)}, below {argument.least}")
            return int(digits)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` where a known name is near, or nothing."""
    near = difflib.get_close_matches(name[:40].lower(), list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def quoted(text: str) -> str:
    """Sampled text as it may stand in a sentence: quoted, printable, short."""
    plain = ascii(text[:50])
    return plain if len(plain) <= 40 else plain[:37] + "..."

"""The first messages of a rollout: what they say of the agent, its tools, recent files and the task.

Every token here is paid for in every rollout, so the texts are short, and a model that was trained on the tools needs
none of them (`spec = "none"` and no system text leave only the task). Renders nothing: `loop` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from etude.harness.text_turns import CALL, END_CALL, END_THINK, THINK
from etude.harness.tools.base import Argument, Tool
from etude.harness.truncate import shorten
from etude.tokens.dialect import Dialect

Spec = Literal["none", "short", "full"]

TEXT_FORM = (
    f'Write a call as {CALL}{{"name": "NAME", "arguments": {{"ARGUMENT": "TEXT"}}}}{END_CALL}, several one after '
    f"another. Think first, between {THINK} and {END_THINK}. A turn without calls ends the work."
)


def system_text(words: str, tools: Mapping[str, Tool], spec: Spec = "short", *, text_form: bool = False) -> str:
    """The system message; empty when there is nothing to say. `text_form` is for policies that spell their calls."""
    parts = [words] if words else []
    if spec != "none" and tools:
        parts.append("\n".join(_told(tool, spec) for tool in tools.values()))
    if text_form:
        parts.append(TEXT_FORM)
    return "\n".join(parts)


def state_effort(system: str, level: str, dialect: Dialect | None) -> tuple[str, Dialect | None]:
    """The system text and the dialect with which a rollout of this level of effort is rendered; no level is no change.

    A chat template that has a variable for it states it itself; elsewhere it is a line of the system text.
    """
    if not level:
        return system, dialect
    stating = dialect.stating_effort(level) if dialect is not None else None
    if stating is not None:
        return system, stating
    return "\n".join([*([system] if system else []), f"Effort: {level}."]), dialect


def task_text(instruction: str, recent: Mapping[str, str] | None = None, *, max_chars: int = 4000) -> str:
    """The user's message: recent files (path -> text), each cut to `max_chars`, then the task."""
    files = [f"{path}:\n{shorten(text.rstrip(), max_chars)}\n\n" for path, text in (recent or {}).items()]
    return "".join(files) + instruction.strip()


def _told(tool: Tool, spec: Spec) -> str:
    if spec == "short":
        return " ".join([tool.name, *(_short(argument) for argument in tool.arguments)])
    lines = [f"{tool.name}: {tool.description}"]
    for argument in tool.arguments:
        kind = "" if argument.kind == "text" else f" ({argument.kind})"
        lines.append(f"  {_short(argument)}{kind}: {argument.doc}")
    return "\n".join(lines)


def _short(argument: Argument) -> str:
    return argument.name if argument.required else f"[{argument.name}]"

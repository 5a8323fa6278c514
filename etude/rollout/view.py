"""One rollout in the terminal, as it happens: what the agent says, calls and sees, and how it came out.

Everything shown was written by a model or a program, so nothing of it reaches the terminal but printable text. Fed by
the events of the harness; knows no policy and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from etude.core.policy import Assistant, Call, System, ToolResult, User
from etude.harness.loop import Event
from etude.harness.trajectory import MessageRecord, Trajectory
from etude.rollout.listing import RolloutLine
from etude.rollout.rollout import Outcome, Void

MOST_LINES = 20  # of one tool result
MOST_CHARS = 2000  # of one argument
STYLES = {"passed": "green", "failed": "red", "error": "red"}


class RolloutView:
    """Give `on_event` to a rollout, then show its outcome."""

    def __init__(self, console: Console | None = None, *, lines: int = MOST_LINES) -> None:
        self._console = console or Console()
        self._lines = lines

    def on_event(self, event: Event) -> None:
        if event.kind == "message" and event.entry is not None:
            self._show(event.entry, event.turn)
        elif event.kind == "stop":
            self._console.print(Rule(f"stopped: {event.stop}", style="dim"))

    def show_outcome(self, outcome: Outcome) -> None:
        console = self._console
        if isinstance(outcome, Void):
            again = "try again" if outcome.retry else "trying again will not help"
            console.print(Text(f"void: {outcome.cause}: {printable(outcome.message)} ({again})", "yellow"))
            return
        grade = outcome.grade
        self._tests(grade.tests, grade.details)
        for refused in outcome.changes.refused[:5]:
            console.print(Text(f"not carried: {printable(refused.path)}: {refused.why}", "dim"))
        where = "apart from the tests" if grade.apart else "together with the tests"
        facts = f"{grade.checked} canaries, code ran {where}, graded in {grade.seconds * 1000:.0f} ms"
        console.print(Text(f"{facts}, {outcome.seconds:.2f} s in all, sandbox {grade.backend}", "dim"))
        console.print(_verdict(outcome.passed, grade.reason, outcome.reward, outcome.parts))

    def show_messages(self, trajectory: Trajectory) -> None:
        """A saved rollout, as it was shown when it happened."""
        turn = -1
        for entry in trajectory.entries:
            turn += isinstance(entry.message, Assistant)
            self._show(entry, turn)
        self._console.print(Rule(f"stopped: {trajectory.stop}", style="dim"))

    def show_line(self, line: RolloutLine) -> None:
        """How a saved rollout came out."""
        self._tests(line.tests, {})
        if line.reward is None:
            self._console.print(Text(f"void: {printable(line.stop)}: {printable(line.reason)}", "yellow"))
        else:
            self._console.print(_verdict(line.passed, line.reason, line.reward, line.parts))

    def _tests(self, tests: Mapping[str, str], details: Mapping[str, str]) -> None:
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, status in sorted(tests.items(), key=lambda test: test[1] == "passed"):  # failures first
            said = Text(printable(details.get(name, "")))
            table.add_row(Text(printable(name)), Text(printable(status), STYLES.get(status, "yellow")), said)
        self._console.print(table)

    def _show(self, entry: MessageRecord, turn: int) -> None:
        console, message = self._console, entry.message
        match message:
            case System():
                console.print(Text(self._short(message.text), "dim"))
            case User():
                console.print(Rule("task", align="left", style="dim"))
                console.print(Text(printable(message.text), "bold"))
            case Assistant():
                console.print(Rule(f"turn {turn + 1} ({entry.seconds:.2f} s)", align="left", style="dim"))
                if message.thinking:
                    console.print(Text(printable(message.thinking), "italic dim"))
                if message.final:
                    console.print(Text(printable(message.final)))
                for call in message.calls:
                    console.print(self._call(call))
                if entry.error:
                    console.print(Text(f"unreadable turn: {printable(entry.note)}", "red"))
            case ToolResult():
                console.print(Text(self._short(message.text), "red" if entry.error else "cyan"))

    def _call(self, call: Call) -> Text:
        text = Text(f"> {printable(call.name)}", "bold magenta")
        for name, value in call.arguments.items():
            shown = printable(value[:MOST_CHARS]) + ("..." if len(value) > MOST_CHARS else "")
            text.append(f"\n  {printable(name)}: ", "magenta")
            text.append("\n    ".join(shown.split("\n")), "")
        return text

    def _short(self, text: str) -> str:
        lines = printable(text).split("\n")
        more = len(lines) - self._lines
        return "\n".join(lines[: self._lines] + ([f"[{more} more lines]"] if more > 0 else []))


def _verdict(passed: bool, reason: str, reward: float, parts: Mapping[str, float]) -> Text:
    text = "solved" if passed else f"not solved: {printable(reason)}"
    named = ", ".join(_part(printable(name), value) for name, value in parts.items())
    return Text(f"{text}; reward {reward:.4g} ({named})", "bold green" if passed else "bold red")


def _part(name: str, value: float) -> str:
    """A part of the reward in words: a penalty of 0 is none, and would read as if something had been found."""
    if name in ("hack_penalty", "honest"):  # its name in earlier versions
        return "no hack found" if value == 0 else f"hack penalty {value:.4g}"
    return f"{name.replace('_', ' ')} {value:.4g}"


def printable(text: str) -> str:
    """Text that no terminal takes for a command: control characters and bytes that are no text as escapes."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else character.encode("unicode_escape").decode()
        for character in text
    )

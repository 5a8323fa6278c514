"""Calls that failed, by class: what the model got wrong about a tool or about the files, and a hint for each.

Classes are read from what our own tools answer (`etude/harness/tools`), or else from the error's own class: what the
tool said of wrong arguments is then the hint. An error that says nothing about the model is `other`, counted and
without a hint.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator

import pydantic

from etude.behaviours.base import Behaviour, Site, Step, steps_of, turns_of
from etude.core.policy import ToolResult, User
from etude.harness.trajectory import Trajectory

NAME = "tool_errors"
MALFORMED = "Write each call with its name and all of its arguments, and end the turn."
TOO_LONG = "This takes too long; do less at once."
LONGEST = 160  # characters of a file, or of what a tool said, that a hint quotes
WORD = re.compile(r"[\w./-]+")
PATH = re.compile(r"[\w./-]*\w\.\w+")  # from the start of a word: from each of its letters it would take their square
MOST_PATHS = 200  # of those that were shown, the first and the newest, that a wrong one is compared with

Hint = Callable[[Step, "re.Match[str]", Trajectory], str]


def _text_not_found(step: Step, found: re.Match[str], trajectory: Trajectory) -> str:
    """With the text that was meant: small models copy what stands close by.

    That is what the same edit took when it worked later, or else the line that the tool found, or else what a later
    edit of the file took. An edit that has worked before is a thing done: to quote a line to it would ask for one more
    edit of what is right.
    """
    path, worked = step.call.arguments.get("path", "it"), _edits_that_worked(step, trajectory)
    if any(each.turn < step.turn and _is_same(each, step) for each in worked):
        return f"{path} is changed already; go on."
    later = [each for each in worked if each.turn > step.turn]
    same = [_text(each, "old") for each in later if _text(each, "new") == _text(step, "new")]
    lines = (found["lines"] or "").split("\n")
    # The tool shows the line before the nearest one, if there is one.
    near = lines[min(len(lines) - 1, 1 if int(found["number"] or 1) > 1 else 0)].strip()
    meant = next((text for text in (*same, near, *(_text(each, "old") for each in later)) if text), "")
    return f"old is: {meant[:LONGEST]}" if meant else f"old must be copied from {path}."


def _edits_that_worked(step: Step, trajectory: Trajectory) -> list[Step]:
    """Calls of the same tool for the same file that did what they should, before this one and after it."""
    alike = [each for each in steps_of(trajectory) if each.call.name == step.call.name]
    path = step.call.arguments.get("path")
    return [each for each in alike if each.call.arguments.get("path") == path and each.result and not each.result.error]


def _is_same(one: Step, other: Step) -> bool:
    """Whether two edits of a file have the same old or the same new text.

    Texts that were deleted have the same new text, none: that says nothing.
    """
    return _text(one, "old") == _text(other, "old") or _text(one, "new") == _text(other, "new") != ""


def _text(step: Step, name: str) -> str:
    return str(step.call.arguments.get(name, ""))


def _no_such_file(step: Step, found: re.Match[str], trajectory: Trajectory) -> str:
    """With the path that was probably meant, of those that the task or a tool had shown before."""
    wrong = step.call.arguments.get("path", "")
    before = [record.message for record in trajectory.entries[: step.turn]]
    shown = [path for message in before if isinstance(message, User | ToolResult) for path in _paths(message.text)]
    paths = [path.strip("./") for path in dict.fromkeys(shown) if path != wrong]
    same = [path for path in paths if path.rpartition("/")[2] == wrong.rpartition("/")[2]]
    some = [*paths[:MOST_PATHS], *paths[MOST_PATHS:][-MOST_PATHS:]]
    near = same or difflib.get_close_matches(wrong[:LONGEST], some, 1, cutoff=0.5)
    return f"path is: {near[0]}" if near else f"{wrong} is not there; take a path that was shown."


def _paths(text: str) -> Iterator[str]:
    for word in WORD.findall(text):
        if found := PATH.match(word):
            yield found[0]


def _say(text: str) -> Hint:
    return lambda step, found, trajectory: text.format(
        tool=step.call.name, path=step.call.arguments.get("path", ""), tools=", ".join(trajectory.tools)
    )


# By class: what the answer looks like, and the hint. The first that fits is the class.
CLASSES: dict[str, tuple[re.Pattern[str], Hint]] = {
    "text_not_found": (
        re.compile(r"old is not in .*?(?:line (?P<number>\d+):\n(?P<lines>.*))?\Z", re.S),
        _text_not_found,
    ),
    "text_not_unique": (
        re.compile(r"old occurs \d+ times"),
        _say("old must be in {path} only once; take more of the lines around it."),
    ),
    "same_text": (re.compile(r"old and new are the same"), _say("new must differ from old.")),
    "unknown_tool": (re.compile(r"there is no tool"), _say("The only tools are {tools}.")),
    "wrong_argument": (
        re.compile(r"\w+ takes .*, not |\w+ needs \w+:|\w+ is .*, (?:not (?:true|a whole)|below)"),
        _say("Give {tool} exactly the arguments that it takes."),
    ),
    "no_such_file": (
        re.compile(r".*: (?:no such (?:file|folder)|not a directory|is a directory)"),
        _no_such_file,
    ),
    "outside": (re.compile(r".* is outside the workspace"), _say("Stay inside the workspace.")),
    "timeout": (re.compile(r".*took too long"), _say(TOO_LONG)),
}


class ToolErrors(Behaviour):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        classes: list[str] = pydantic.Field([], description=f"only these of {', '.join(CLASSES)}, malformed, other")

        @pydantic.field_validator("classes")
        @classmethod
        def known(cls, names: list[str]) -> list[str]:
            if unknown := [name for name in names if name not in (*CLASSES, "malformed", "other")]:
                raise ValueError(f"no tool error is called {unknown[0]!r}")
            return names

    settings: Settings

    def sites(self, trajectory: Trajectory) -> list[Site]:
        found = []
        for step in steps_of(trajectory):
            if step.result is not None and step.result.error is not None:
                found.append(_site(step, trajectory))
        # A turn that the token limit cut says nothing about whether the model knows the format.
        broken = [e for e, record, _ in turns_of(trajectory) if record.error is not None and record.stop != "length"]
        found += [Site(entry, f"{NAME}.malformed", MALFORMED) for entry in broken]
        wanted = [site for site in found if not self.settings.classes or _class(site) in self.settings.classes]
        return sorted(wanted, key=lambda site: site.message)


def _site(step: Step, trajectory: Trajectory) -> Site:
    text = step.answer.removeprefix("error: ")
    error = step.result.error if step.result is not None else None
    if error == "Timeout":  # of a command, the answer is what it wrote until then, which may look like anything
        return Site(step.turn, f"{NAME}.timeout", TOO_LONG)
    for name, (pattern, hint) in CLASSES.items():
        if found := pattern.match(text):
            return Site(step.turn, f"{NAME}.{name}", hint(step, found, trajectory))
    if error == "InvalidArguments":
        return Site(step.turn, f"{NAME}.wrong_argument", " ".join(text.split())[:LONGEST])
    return Site(step.turn, f"{NAME}.other", "")


def _class(site: Site) -> str:
    return site.kind.partition(".")[2]

"""A task whose report lies in the issue tracker: the instruction names the issue, and the tracker has the words.

For origins whose instruction is a report; the tool `service` reads it. Nothing is told that the instruction did not.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from etude.tasks.environment.shadow_backend import FILE, Issue, ShadowBackend
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.task import Task

POINTERS: Final[dict[PromptStyle, str]] = {
    "terse": "fix issue {number}\n",
    "plain": "Issue {number} in the tracker reports a bug in this project. Please mend it and change nothing else.\n",
    "detailed": (
        "Issue {number} in the issue tracker reports a bug in this project. Ask the service `issues` for it, find the "
        "cause and mend it where it is. Change nothing else.\n"
    ),
}
# Issues of any project, so that the right one has to be found or asked for by its number.
OTHERS: Final = (
    ("Release notes for the next version", "Collect what changed since the last one.", "open"),
    ("Drop support for old interpreters", "Nobody asks for them any more.", "closed"),
    ("Badge in the readme is broken", "The address moved.", "closed"),
    ("Typing of the public functions", "Annotations would help editors.", "open"),
)


def report_in_tracker(task: Task, rng: random.Random) -> Task:
    """The task in all prompt styles with its report as an issue; the words of each style go to the tracker once."""
    words = {style: task.files.text(f"instructions/{style}.md") for style in POINTERS}
    title = words["terse"].strip().splitlines()[0][:200]
    number = rng.randint(20, 900)
    told = [*OTHERS]
    told.insert(rng.randrange(len(told) + 1), (title, words["plain"], "open"))
    issues = [Issue(number=number + at, title=t, text=text, state=state) for at, (t, text, state) in enumerate(told)]
    number = next(issue.number for issue in issues if issue.text == words["plain"])
    texts = {style: text.format(number=number) for style, text in POINTERS.items()}
    changes: dict[str, bytes | None] = {f"instructions/{style}.md": text.encode() for style, text in texts.items()}
    changes[FILE] = ShadowBackend(issues=issues).to_json()
    instruction = texts[task.facts.prompt_style or "plain"]
    return replace(task, instruction=instruction, files=task.files.replaced(changes))

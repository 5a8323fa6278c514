"""How a question is put, three times: in a hurry, as one asks a colleague, and with all that there is to know.

Each says how the answer is to be spelled. Knows the question; the answer is nowhere in what it writes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from etude.forge.languages.python.repository import PythonRepository
from etude.forge.steps.candidate import Question
from etude.forge.steps.instructions import Instructions, sloppy
from etude.tasks.format.config import PromptStyle

CATEGORY: Final = {"review": "code review", "plan": "planning"}
OTHERS: Final = "question answering"
FORM: Final = "`ANSWER: path/to/file.py:function`, or `path/to/file.py:Class.method` for a method"
FORMS: Final = (
    "`ANSWER:` and the functions as `path/to/file.py:function` or `path/to/file.py:Class.method`, with commas"
)
HURRY: Final = "last line: ANSWER: path.py:name (path.py:Class.name for methods)"
HURRY_MANY: Final = "last line: ANSWER: path.py:name, path.py:Class.name, ..."
MOST_SHOWN: Final = 8  # failing tests that an issue lists

TERSE: Final = {
    "review": (
        "one of these changes breaks something, which function?",
        "can you review this? one function is broken by it, which one",
        "something in this patch is wrong. which function does it break",
    ),
    "reach": (
        "which of these get called when {test} runs?",
        "need to know which of these {test} actually goes through",
        "{test} - which of these functions does it run",
    ),
    "implementation": (
        "there are {count} functions called {name}, which one does {test} use?",
        "which {name} runs in {test}?",
        "{test} calls some {name}, which one is it",
    ),
    "raises": (
        "{test} expects an exception, who raises it?",
        "where does the exception in {test} come from, which function",
        "which function raises what {test} is waiting for",
    ),
    "plan": (
        "tests are red, {count} bugs. dont fix yet, just tell me which functions need changing",
        "need a plan for these failures: which {count} functions have to change? nothing to edit now",
        "these broke at once. which functions would you touch ({count} of them), no edits please",
    ),
}


def tell_question(world: PythonRepository, asked: Question, rng: random.Random) -> Instructions:
    prompt_styles: dict[PromptStyle, str] = {
        "terse": _terse(asked, rng),
        "plain": _plain(asked),
        "detailed": _detailed(world, asked),
    }
    return Instructions(CATEGORY.get(asked.how, OTHERS), prompt_styles)


def _terse(asked: Question, rng: random.Random) -> str:
    names = {"test": _short(asked.test), "name": _name(asked), "count": len(asked.choices)}
    said = sloppy(rng.choice(TERSE[asked.how]), rng).format(**names)
    where = f" ({asked.test.partition('::')[0]})" if asked.test else ""
    form = HURRY if asked.kind == "name" else HURRY_MANY
    return f"{said}{where}\n\n{_shown(asked)}{form}\n"


def _plain(asked: Question) -> str:
    if asked.how == "review":
        said = (
            f"Can you review this patch? It is applied here already, and was meant to tidy up {len(asked.choices)} "
            "functions without changing what they do. One of them behaves differently now. Which one?"
        )
    elif asked.how == "reach":
        said = (
            f"I am trying to understand what `{asked.test}` covers. When it runs by itself, which of these functions "
            "are called, by the test, its fixtures or anything that they call?"
        )
    elif asked.how == "plan":
        said = (
            f"{len(asked.said)} tests fail since the last changes, and the tests are right. Before anybody edits "
            f"something I want a plan: which functions have to be changed so that all of them pass again? There are "
            f"{len(asked.accepted)} mistakes, each in a function of its own. Name those functions, where the mistakes "
            "are: all of them and no others, not one that could work around a mistake elsewhere."
        )
    elif asked.how == "implementation":
        said = (
            f"There are {len(asked.choices)} functions called `{_name(asked)}` in this project, and I cannot tell "
            f"which of them `{asked.test}` ends up in. Exactly one of them is called when it runs. Which one?"
        )
    else:
        said = (
            f"`{asked.test}` expects an exception. Which function of the project raises it? I mean the one whose "
            "`raise` statement is executed, not those that the exception passes through."
        )
    return f"{said}\n\n{_shown(asked)}Nothing has to be changed. {_closing(asked)}\n"


def _detailed(world: PythonRepository, asked: Question) -> str:
    parts = [f"# {_TITLES[asked.how]}", _plain(asked).partition("\n\n")[0]]
    if shown := _shown(asked).strip():
        parts.append(shown)
    if asked.how == "review":
        names = "\n".join(f"- `{name}`" for name in asked.choices)
        parts.append(f"The functions that it changes:\n\n{names}")
        parts.append("The tests in the repository are right, and were all green before.")
    elif asked.how == "plan":
        parts.append(
            "Each of the functions is needed: as long as one of them is as it is now, some of these tests fail. With "
            "all of them mended the whole suite is green. Run it with `python -m pytest`."
        )
    elif asked.how == "implementation":
        parts.append("They are:\n\n" + "\n".join(f"- `{name}`" for name in asked.choices))
    elif asked.how == "raises":
        count = len(asked.choices)
        parts.append(
            f"{count} functions with a `raise` statement are called on the way; only one of them gets that far."
        )
    if asked.test:
        parts.append(f"The test runs with `python -m pytest {asked.test}`.")
    parts.append(
        "You may run and try whatever you like; files that you change are thrown away. The answer is checked by a "
        f"program. {_closing(asked)}"
    )
    return "\n\n".join(parts) + "\n"


_TITLES: Final = {
    "review": "Review: which function does this patch break?",
    "reach": "Which functions does this test run?",
    "implementation": "Which implementation does this test use?",
    "raises": "Which function raises this exception?",
    "plan": "A plan: which functions have to be changed?",
}


def _closing(asked: Question) -> str:
    if asked.kind == "names":
        return f"End your last message with a line that has {FORMS}; all of them, and no others."
    return f"End your last message with a line of the form {FORM}."


def _shown(asked: Question) -> str:
    """What has to be seen to understand the question."""
    if asked.how == "review":
        return f"```diff\n{asked.patch.rstrip()}\n```\n\n"
    if asked.how == "reach":
        return "\n".join(f"- `{name}`" for name in asked.choices) + "\n\n"
    return "\n".join(_failures(asked.said)) + "\n\n" if asked.how == "plan" else ""


def _failures(said: Mapping[str, str]) -> list[str]:
    """Failing tests as an issue lists them, of each function with parameters one."""
    places: dict[str, str] = {}
    for test in said:
        places.setdefault(test.partition("[")[0], test)
    shown = list(places.values())[:MOST_SHOWN]
    lines = [f"- `{test}`" + (f": `{told}`" if (told := _line(said[test])) else "") for test in shown]
    more = len(said) - len(shown)
    return [*lines, *([f"- and {more} more"] if more else [])]


def _line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160].replace("`", "'") if lines else ""


def _short(test: str) -> str:
    """Without its file, but with its class: another may have a test of the same name."""
    return test.partition("::")[2].replace("::", ".")


def _name(asked: Question) -> str:
    """The name that all choices share."""
    return asked.choices[0].partition(":")[2].rpartition(".")[2]

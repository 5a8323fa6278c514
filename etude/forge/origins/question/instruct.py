"""How a question is put: in a hurry, as one asks a colleague, and with all that there is to know.

Each says how the answer is to be spelled. Knows the question; the answer is nowhere in what it writes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from etude.forge.origins.question.candidate import Question
from etude.forge.steps.instructions import Instructions, last_line, with_typo

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
# What somebody was doing when the question came up; nothing where it is asked straight away.
LEADS: Final = {
    "review": ("", "This came in as a clean-up, and I have a bad feeling about it. "),
    "reach": ("", "Before I delete anything I would like to be sure. "),
    "implementation": ("", "I am new to this code base and got lost. ", "I am debugging something odd here. "),
    "raises": ("", "I want to improve an error message and cannot find where it comes from. "),
}


def instruct(question: Question, rng: random.Random) -> Instructions:
    category = CATEGORY.get(question.how, OTHERS)
    plain = rng.choice(LEADS.get(question.how, ("",))) + _plain(question)
    return Instructions(category, _terse(question, rng), plain, _detailed(question))


def _terse(question: Question, rng: random.Random) -> str:
    names = {"test": _short(question.test), "name": _name(question), "count": len(question.choices)}
    text = with_typo(rng.choice(TERSE[question.how]), rng).format(**names)
    where = f" ({question.test.partition('::')[0]})" if question.test else ""
    form = HURRY if question.kind == "name" else HURRY_MANY
    return f"{text}{where}\n\n{_shown(question)}{form}\n"


def _plain(question: Question) -> str:
    if question.how == "review":
        text = (
            f"Can you review this patch? It is applied here already, and was meant to tidy up {len(question.choices)} "
            "functions without changing what they do. One of them behaves differently now. Which one?"
        )
    elif question.how == "reach":
        text = (
            f"I am trying to understand what `{question.test}` covers. When it runs by itself, which of these "
            "functions are called, by the test, its fixtures or anything that they call?"
        )
    elif question.how == "plan":
        text = (
            f"{len(question.output)} tests fail since the last changes, and the tests are right. Before anybody edits "
            f"something I want a plan: which functions have to be changed so that all of them pass again? There are "
            f"{len(question.accepted)} mistakes, each in a function of its own. Name those functions, where the "
            "mistakes are: all of them and no others, not one that could work around a mistake elsewhere."
        )
    elif question.how == "implementation":
        text = (
            f"There are {len(question.choices)} functions called `{_name(question)}` in this project, and I cannot "
            f"tell which of them `{question.test}` ends up in. Exactly one of them is called when it runs. Which one?"
        )
    else:
        text = (
            f"`{question.test}` expects an exception. Which function of the project raises it? I mean the one whose "
            "`raise` statement is executed, not those that the exception passes through."
        )
    return f"{text}\n\n{_shown(question)}Nothing has to be changed. {_closing(question)}\n"


def _detailed(question: Question) -> str:
    parts = [f"# {_TITLES[question.how]}", _plain(question).partition("\n\n")[0]]
    if shown := _shown(question).strip():
        parts.append(shown)
    if question.how == "review":
        names = "\n".join(f"- `{name}`" for name in question.choices)
        parts.append(f"The functions that it changes:\n\n{names}")
        parts.append("The tests in the repository are right, and were all green before.")
    elif question.how == "plan":
        parts.append(
            "Each of the functions is needed: as long as one of them is as it is now, some of these tests fail. With "
            "all of them mended the whole suite is green. Run it with `python -m pytest`."
        )
    elif question.how == "implementation":
        parts.append("They are:\n\n" + "\n".join(f"- `{name}`" for name in question.choices))
    elif question.how == "raises":
        count = len(question.choices)
        parts.append(
            f"{count} functions with a `raise` statement are called on the way; only one of them gets that far."
        )
    if question.test:
        parts.append(f"The test runs with `python -m pytest {question.test}`.")
    parts.append(
        "You may run and try whatever you like; files that you change are thrown away. The answer is checked by a "
        f"program. {_closing(question)}"
    )
    return "\n\n".join(parts) + "\n"


_TITLES: Final = {
    "review": "Review: which function does this patch break?",
    "reach": "Which functions does this test run?",
    "implementation": "Which implementation does this test use?",
    "raises": "Which function raises this exception?",
    "plan": "A plan: which functions have to be changed?",
}


def _closing(question: Question) -> str:
    if question.kind == "names":
        return f"End your last message with a line that has {FORMS}; all of them, and no others."
    return f"End your last message with a line of the form {FORM}."


def _shown(question: Question) -> str:
    """What has to be seen to understand the question."""
    if question.how == "review":
        return f"```diff\n{question.patch.rstrip()}\n```\n\n"
    if question.how == "reach":
        return "\n".join(f"- `{name}`" for name in question.choices) + "\n\n"
    return "\n".join(_failures(question.output)) + "\n\n" if question.how == "plan" else ""


def _failures(output: Mapping[str, str]) -> list[str]:
    """Failing tests as an issue lists them, of each function with parameters one."""
    places: dict[str, str] = {}
    for test in output:
        places.setdefault(test.partition("[")[0], test)
    shown = list(places.values())[:MOST_SHOWN]
    lines = [f"- `{test}`" + (f": `{last}`" if (last := last_line(output[test])) else "") for test in shown]
    more = len(output) - len(shown)
    return [*lines, *([f"- and {more} more"] if more else [])]


def _short(test: str) -> str:
    """Without its file, but with its class: another may have a test of the same name."""
    return test.partition("::")[2].replace("::", ".")


def _name(question: Question) -> str:
    """The name that all choices share."""
    return question.choices[0].partition(":")[2].rpartition(".")[2]

"""What the agent is asked: the same task in three prompt styles.

Terse is how somebody in a hurry types, plain is a sentence or two, detailed is an issue with an example. Each names
every file and function; what a function has to do stands in its docstring, and in plain and detailed here as well.
"""

from __future__ import annotations

import random

from etude.forge.katas.kata_repository import RAISES, Hole, Repository
from etude.tasks.format.config import PromptStyle

TERSE = ("restore {}", "bring back {}", "write {} again", "fix {}", "we lost {}")
PLAIN = ("Please restore {}.", "Somebody deleted {}.", "We lost {}.", "Please write {} again.")
LONGEST_EXAMPLE = 60  # characters of a call and its value; longer ones say less than they cost
DULL = ("", "0", '""', "[]", "{}", "set()", "None")  # values that make a poor example


def instruct(repository: Repository, prompt_style: PromptStyle, rng: random.Random) -> str:
    holes = repository.holes
    named = " and ".join(_place(repository, hole, quoted=prompt_style != "terse") for hole in holes)
    if prompt_style == "terse":
        return rng.choice(TERSE).format(named)
    if prompt_style == "plain":
        return "\n".join([rng.choice(PLAIN).format(named), *(_rule(hole, alone=len(holes) == 1) for hole in holes)])
    title = " and ".join(f"`{hole.function.name}`" for hole in holes)
    parts = [f"# {title} {'do' if len(holes) > 1 else 'does'} not work"]
    for hole in holes:
        parts.append(f"{_place(repository, hole, quoted=True)} {_now(hole)}. {_rule(hole, alone=True)}")
        examples = [case for case in hole.visible if case.value not in DULL] or hole.visible
        example = min(examples, key=lambda case: len(case.call) + len(case.value))
        if len(example.call) + len(example.value) <= LONGEST_EXAMPLE:
            parts.append(f"Example: `{example.call}` should give `{example.value}`.")
    return "\n\n".join(parts)


def _place(repository: Repository, hole: Hole, *, quoted: bool) -> str:
    tick = "`" if quoted else ""
    return f"{tick}{hole.function.name}{tick} in {tick}{repository.package}/{hole.module}.py{tick}"


def _rule(hole: Hole, *, alone: bool) -> str:
    """The docstring, which starts with "Return", as something that is wanted."""
    doc = hole.function.doc
    return f"{'It' if alone else f'`{hole.function.name}`'} should {doc[0].lower()}{doc[1:]}"


def _now(hole: Hole) -> str:
    if hole.remainder == RAISES:
        return "raises NotImplementedError"
    return "returns None" if hole.remainder == "return None" else "gives wrong results"

"""What the agent of a ladder task is asked: a sentence or two, in several wordings. Knows no answer."""

from __future__ import annotations

import random
from typing import Final

from etude.forge.ladder.propose import Step
from etude.forge.steps.instructions import Instructions

# {test} is a test's id, {name} the function, {path} its file, {first} and {last} its lines, {package} the repository.
TERSE: Final = {
    1: (
        "{test} fails: one token in {name} is wrong ({path}:{first}-{last})",
        "fix {name} in {path}, lines {first}-{last}: {test} is red",
    ),
    2: (
        "a test of {package} is red, one token is wrong somewhere. fix it",
        "{package} has a bug of one token. run the tests, find it, fix it",
    ),
    3: ("{name} lost its body ({path}:{first}-{last}). write it again, one line, so that {test} passes",),
    4: ("{name} lost its body ({path}:{first}-{last}). write it again, at most three lines, so that {test} passes",),
}
PLAIN: Final = {
    1: (
        "The test `{test}` fails. One token is wrong in `{name}` in `{path}`, lines {first} to {last}. Fix it.\n",
        "Since the last change `{test}` fails. The mistake is a single token of `{name}` (`{path}`, lines "
        "{first}-{last}). Mend it there and leave the test alone.\n",
        "`{name}` in `{path}` (lines {first}-{last}) has a bug: one token is wrong, so `{test}` fails. Fix it.\n",
    ),
    2: (
        "A test of `{package}` fails since the last change. One token of the code is wrong. Find it and fix it.\n",
        "There is a bug in `{package}`: a single token is wrong somewhere. Run the tests, find the bug and fix it. "
        "The tests are right.\n",
    ),
    3: (
        "The body of `{name}` in `{path}` (lines {first}-{last}) is gone. It was one line. Write it again so that "
        "`{test}` passes.\n",
        "`{name}` in `{path}`, lines {first} to {last}, has no body any more. One line is enough. `{test}` should "
        "pass again.\n",
    ),
    4: (
        "The body of `{name}` in `{path}` (lines {first}-{last}) is gone. It had at most three lines. Write it again "
        "so that `{test}` passes.\n",
        "`{name}` in `{path}`, lines {first} to {last}, has no body any more. Up to three lines are enough. `{test}` "
        "should pass again.\n",
    ),
}
_WHERE: Final = "Test: `{test}`\nFile: `{path}`\nFunction: `{name}`, lines {first} to {last}\n\n"
DETAILED: Final = {
    1: f"# One token is wrong\n\n{_WHERE}The test passed before and is right. Change that token and nothing else.\n",
    2: "# One token is wrong\n\nThe tests of `{package}` passed before; now some fail. The tests are right. One token "
    "of the code is wrong: find it by running the tests, and change it and nothing else.\n",
    3: f"# A body is missing\n\n{_WHERE}Its body was one line. Write it again and change nothing else.\n",
    4: f"# A body is missing\n\n{_WHERE}Its body had at most three lines. Write it again and change nothing else.\n",
}


def instruct(step: Step, package: str, test: str, rng: random.Random) -> Instructions:
    """The three styles, each in one of its wordings."""
    piece = step.pieces[0]
    words = {
        "test": test.partition("[")[0],
        "name": piece.name,
        "path": piece.path,
        "first": step.first,
        "last": step.last,
        "package": package,
    }
    terse, plain = rng.choice(TERSE[step.rung]), rng.choice(PLAIN[step.rung])
    texts = (text.format(**words) for text in (terse, plain, DETAILED[step.rung]))
    return Instructions("debugging" if step.origin == "bug" else "feature iteration", *texts)

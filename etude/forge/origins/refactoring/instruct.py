"""How a refactoring is asked for.

Each says the old name or place and the new one, that nothing may stay behind under the old one, and that the tests of
the repository move along. Knows what is asked; not the edit.
"""

from __future__ import annotations

import random
from typing import Final

from etude.forge.origins.refactoring.candidate import Refactoring
from etude.forge.steps.instructions import Instructions, code_block, with_typo

CATEGORIES: Final[dict[str, str]] = {"rename": "refactor", "parameter": "migration", "move": "project structure"}
TERSE: Final[dict[str, tuple[str, ...]]] = {
    "rename": (
        "rename {what} to {new} ({where}), everywhere, tests too. no alias, the old name has to be gone",
        "{what} -> {new} please, all over the repo incl. tests and docs, nothing left under the old name ({where})",
        "call {what} {new} from now on ({where}). move all callers and tests over, no alias for the old name",
    ),
    "parameter": (
        "rename the parameter {old} of {what} to {new} ({where}), move all callers and tests. {old}= must raise a "
        "TypeError, dont swallow it with **kwargs",
        "{what}: {old}= should be {new}= ({where}). callers and tests too, and the old keyword is refused as an "
        "unexpected one, no **kwargs",
    ),
    "move": (
        "move {what} to {target} ({new}), fix all imports incl. tests. nothing stays at the old place, no shim, no "
        "re-export of the module",
        "{what} should live at {target} ({new}). imports and tests too, {what} must not be importable any more",
    ),
}
# Why, in front of what is wanted; nothing where somebody comes straight to the point.
REASONS: Final[dict[str, tuple[str, ...]]] = {
    "rename": (
        "",
        "New people on the team stumble over the name `{old}`. ",
        "We agreed on our terms in the last meeting, and `{old}` does not fit them any more. ",
        "While reading the code I noticed that `{old}` says something else than it means. ",
    ),
    "parameter": (
        "",
        "Before the next major release I would like our keywords to agree with each other. ",
        "Users confuse the keyword `{old}` with something else. ",
    ),
    "move": (
        "",
        "Our layout has grown by accident, and I would like to tidy it up. ",
        "Nobody finds `{old_module}` where it is now. ",
    ),
}
GREEN: Final = "Tests that are not in the repository check this, beside its own tests in their new form."


def instruct(candidate: Refactoring, rng: random.Random) -> Instructions:
    terse = with_typo(rng.choice(TERSE[candidate.how]), rng, {"kwargs"}).format(**_words(candidate))
    plain, detailed = {"rename": _rename, "parameter": _parameter, "move": _move}[candidate.how](candidate)
    reason = rng.choice(REASONS[candidate.how]).format(old=candidate.old, old_module=candidate.dotted[0])
    return Instructions(CATEGORIES[candidate.how], f"{terse}\n", reason + plain, detailed)


def _words(candidate: Refactoring) -> dict[str, str]:
    first = candidate.pieces[0]
    what = first.name.removesuffix(".__init__")
    return {
        "what": what,
        "old": candidate.old,
        "new": candidate.new,
        "where": first.path,
        "target": candidate.dotted[1],
    }


def _rename(candidate: Refactoring) -> tuple[str, str]:
    piece, old, new = candidate.pieces[0], candidate.old, candidate.new
    owner = piece.name.rpartition(".")[0]
    kind = "class" if piece.signature.startswith("class") else "method" if owner else "function"
    plain = (
        f"The {kind} `{piece.name}` in `{piece.path}` should be called `{new}` from now on.\n\nPlease rename it "
        "everywhere: where it is defined, all that use it, exports, docs and the tests of the repository. Nothing may "
        f"be left under the name `{old}`, no alias and no deprecated wrapper either. What it does stays the same.\n"
    )
    answers = (
        f"- `{owner}`, its subclasses and its objects do not answer to `{old}` any more, in whichever way."
        if owner
        else f"- No module of the project has or exports `{old}` any more, in whichever way (alias, import, `__all__`, "
        "`__getattr__`)."
    )
    parts = [
        f"# Rename `{piece.name}` to `{new}`",
        f"In `{piece.path}`:\n\n{code_block(piece.signature)}",
        "## What is wanted",
        f"- The {kind} is defined under its new name, `{new}`{f' in class `{owner}`' if owner else ''}; it is not "
        f"another name for something that is still called `{old}`.\n{answers}\n- Everything that used the old name "
        "uses the new one: code, exports, docstrings, documents and the tests of the repository.\n- Signature and "
        "behaviour stay as they are.",
        GREEN,
    ]
    return plain, "\n\n".join(parts) + "\n"


def _parameter(candidate: Refactoring) -> tuple[str, str]:
    words, old, new = _words(candidate), candidate.old, candidate.new
    names = [f"`{piece.name.removesuffix('.__init__')}` in `{piece.path}`" for piece in candidate.pieces]
    others = f" The same goes for {', '.join(names[1:])}, which override it." if len(names) > 1 else ""
    plain = (
        f"The parameter `{old}` of {names[0]} should be called `{new}`.{others}\n\nPlease move all who pass it by name "
        "over to the new one, the tests of the repository and the docs too. The old keyword goes without a transition: "
        f"passing `{old}=` has to be a TypeError about an unexpected keyword argument, and must not be swallowed by "
        "`**kwargs`. Position, default and meaning stay the same.\n"
    )
    signatures = "\n\n".join(f"`{piece.path}`:\n\n{code_block(piece.signature)}" for piece in candidate.pieces)
    parts = [
        f"# Call the parameter `{old}` of `{words['what']}` `{new}`",
        signatures,
        "## What is wanted",
        f"- {', '.join(names)}: the parameter is called `{new}`, at the same position and with the same default.\n"
        f"- Passing `{old}=` raises a TypeError that says that the keyword argument is unexpected, as Python itself "
        f"does; there is no `**kwargs` that takes it, and no second parameter for it.\n- All who passed `{old}=` to it "
        f"pass `{new}=`: code, docstrings, documents and the tests of the repository.",
        GREEN,
    ]
    return plain, "\n\n".join(parts) + "\n"


def _move(candidate: Refactoring) -> tuple[str, str]:
    old, new = candidate.dotted
    parent, _, stem = old.rpartition(".")
    plain = (
        f"The module `{old}` should move to `{new}`, from `{candidate.old}` to `{candidate.new}`.\n\nPlease move all "
        "imports over to the new place, those in the tests of the repository too. Nothing may stay behind at the old "
        f"place, no module that imports everything from the new one either: neither `import {old}` nor `from {parent} "
        f"import {stem}` may work afterwards. What other modules export stays as it is.\n"
    )
    parts = [
        f"# Move `{old}` to `{new}`",
        f"From `{candidate.old}` to `{candidate.new}`; a package that is not there yet has to be made.",
        "## What is wanted",
        f"- `import {new}` gives the module, and what it defined is defined there, not somewhere else and imported "
        f"into it.\n- `import {old}` is a ModuleNotFoundError, and `{parent}` has no attribute `{stem}`: no shim, no "
        "entry in `sys.modules`, no `__getattr__`.\n- All imports follow: code, docs and the tests of the repository, "
        "also where a name stands in a string. Other names that packages export stay importable from where they are.",
        GREEN,
    ]
    return plain, "\n\n".join(parts) + "\n"

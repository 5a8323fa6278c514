"""From drafts to a repository: modules, README and tests, whole and with the target's bodies deleted.

The expected value in every test comes from running the whole code once. A repository that could be passed by what
the deletion leaves behind, or by one constant, is refused (`PoorDraw`), and its maker draws again. Knows nothing about
instructions or task directories.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

from etude.forge.katas.draft import Draft, Function, show

RAISES = "raise NotImplementedError"
VISIBLE, HELD_OUT = 4, 8  # cases of each deleted function that the agent sees, and that it does not
IN_ONE_TEST = 2  # cases in one test method
INDENT = " " * 4
LINE = 100  # characters of a docstring's line


class PoorDraw(Exception):
    """This draw gives tests that tell too little."""


@dataclass(frozen=True)
class Case:
    """One call and what it gives, both as source."""

    call: str
    value: str
    first: str  # the first argument: some answers just give it back


@dataclass(frozen=True)
class Hole:
    """A function of the target: what is left of it, and the cases that test it."""

    module: str
    function: Function
    remainder: str
    visible: tuple[Case, ...]
    held_out: tuple[Case, ...]


@dataclass(frozen=True)
class Repository:
    package: str
    holes: tuple[Hole, ...]
    files: dict[str, bytes]  # as the agent finds it
    whole: dict[str, bytes]  # the modules with holes, as they were
    hidden: dict[str, bytes]  # tests that the agent never sees
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    held_out: tuple[str, ...]


def build(package: str, target: Draft, others: Sequence[Draft], rng: random.Random) -> Repository:
    """A package of the target's modules and some others whose functions stay. Raises `PoorDraw` for a poor draw."""
    intact = [(module, function) for draft in others for module, function in draft.modules]
    namespace: dict[str, Any] = {}
    _define([(function, function.body) for _, function in [*target.modules, *intact]], namespace)
    holes = tuple(_hole(module, function, namespace, rng) for module, function in target.modules)
    if any(hole.remainder != RAISES for hole in holes) and not _all_fail(holes, namespace):
        holes = tuple(replace(hole, remainder=RAISES) for hole in holes)
    companions = [(module, function, _cases(function, namespace, IN_ONE_TEST)) for module, function in intact]

    modules: dict[str, list[tuple[Function, str]]] = {}
    for hole in holes:
        modules.setdefault(hole.module, []).append((hole.function, hole.remainder))
    for module, function in intact:
        modules.setdefault(module, []).append((function, function.body))
    for functions in modules.values():
        rng.shuffle(functions)
    where = {function.name: module for module, functions in modules.items() for function, _ in functions}
    files = {f"{package}/{name}.py": _module(package, name, parts, where) for name, parts in modules.items()}
    bodies = {hole.function.name: hole.function.body for hole in holes}
    whole = {
        f"{package}/{name}.py": _module(package, name, [(f, bodies.get(f.name, b)) for f, b in parts], where)
        for name, parts in modules.items()
        if any(hole.module == name for hole in holes)
    }

    tests: dict[str, list[tuple[Function, list[tuple[Case, ...]], bool]]] = {}
    for hole in holes:
        tests.setdefault(hole.module, []).append((hole.function, _in_tests(hole.visible), True))
    for module, function, cases in companions:
        tests.setdefault(module, []).append((function, _in_tests(cases), False))
    failing: list[str] = []
    passing: list[str] = []
    for module, parts in tests.items():
        files[f"tests/test_{module}.py"] = _tests(package, [(f, where[f.name], groups) for f, groups, _ in parts], "")
        for function, groups, deleted in parts:
            (failing if deleted else passing).extend(_ids(f"test_{module}", function, len(groups), ""))
    hidden = [(hole.function, hole.module, _in_tests(hole.held_out)) for hole in holes]
    return Repository(
        package=package,
        holes=holes,
        files={
            "README.md": _readme(package, modules).encode(),
            f"{package}/__init__.py": f'"""The {package} package."""\n'.encode(),
            "tests/__init__.py": b"",
            **{path: text.encode() for path, text in files.items()},
        },
        whole={path: text.encode() for path, text in whole.items()},
        hidden={"test_held_out.py": _tests(package, hidden, "HeldOut").encode()},
        fail_to_pass=tuple(failing),
        pass_to_pass=tuple(passing),
        held_out=tuple(
            name for function, _, groups in hidden for name in _ids("test_held_out", function, len(groups), "HeldOut")
        ),
    )


# Running


def _define(functions: Sequence[tuple[Function, str]], namespace: dict[str, Any]) -> None:
    parts = [f"{one.head}\ndef {one.name}({one.arguments}):\n{_indented(body)}" for one, body in functions]
    text = "\n".join(parts)
    exec(compile(text, "<kata>", "exec"), namespace)  # noqa: S102  # our own text, made by families


def _cases(function: Function, namespace: dict[str, Any], count: int) -> tuple[Case, ...]:
    """Different inputs: the edges that must be there, then drawn ones."""
    found: dict[str, Case] = {}
    edges = iter(function.edges[: count // 2 + count // 4])
    for _ in range(20 * count):
        if len(found) == count:
            return tuple(found.values())
        arguments = next(edges, None) or function.draw()
        call = f"{function.name}({', '.join(map(show, arguments))})"
        if call not in found:
            first = show(arguments[0])
            found[call] = Case(call, show(namespace[function.name](*arguments)), first)
    raise PoorDraw(f"{function.name} has too few different inputs")


def _hole(module: str, function: Function, namespace: dict[str, Any], rng: random.Random) -> Hole:
    cases = list(_cases(function, namespace, VISIBLE + HELD_OUT))
    rng.shuffle(cases)
    visible, held_out = tuple(cases[:VISIBLE]), tuple(cases[VISIBLE:])
    if not (_tells(visible, 2) and _tells(held_out, 3)):
        raise PoorDraw(f"{function.name} gives the same value too often")
    remainder = rng.choices([RAISES, "return None", function.wrong or RAISES], [0.7, 0.08, 0.22])[0]
    hole = Hole(module, function, remainder, visible, held_out)
    return _less_alike(hole, namespace, rng) if _is_guessed(hole) else hole


def _less_alike(hole: Hole, namespace: dict[str, Any], rng: random.Random) -> Hole:
    """The hole with some held-out cases that a table of the visible ones gets wrong. What is drawn for them changes
    nothing else of the repository."""
    before = rng.getstate()
    more = _cases(hole.function, namespace, VISIBLE + 4 * HELD_OUT)
    rng.setstate(before)
    wrong = [case for case in more if _nearest(hole, case).value != case.value]
    if len(wrong) < IN_ONE_TEST:
        raise PoorDraw(f"visible tests tell what {hole.function.name} gives for the inputs of held-out ones")
    return replace(hole, held_out=(*hole.held_out[:-IN_ONE_TEST], *wrong[:IN_ONE_TEST]))


def _tells(cases: Sequence[Case], least: int) -> bool:
    """Whether results differ so that neither a constant nor the argument itself could pass for the function."""
    values = {case.value for case in cases}
    enough = len(values) >= least or values == {"True", "False"}
    return enough and any(case.value != case.first for case in cases)


def _is_guessed(hole: Hole) -> bool:
    """Whether a table of the visible tests that answers with what is nearest would pass the held-out ones."""
    return all(_nearest(hole, case).value == case.value for case in hole.held_out)


def _nearest(hole: Hole, case: Case) -> Case:
    """The visible case whose call looks most like this one."""

    def likeness(known: Case) -> int:
        same = sum(left == right for left, right in zip(known.call, case.call, strict=False))
        return same - abs(len(known.call) - len(case.call))

    return max(hole.visible, key=likeness)


def _all_fail(holes: Sequence[Hole], namespace: dict[str, Any]) -> bool:
    """Whether every test of the holes notices what is left of them."""
    left = dict(namespace)
    _define([(hole.function, hole.remainder) for hole in holes], left)

    def holds(case: Case) -> bool:
        try:
            return show(eval(case.call, left)) == case.value  # noqa: S307  # our own text, made by families
        except Exception:  # a remainder may fail in any way
            return False

    tests = [test for hole in holes for test in _in_tests(hole.visible) + _in_tests(hole.held_out)]
    return not any(all(map(holds, test)) for test in tests)


# Writing


def _indented(text: str, by: str = INDENT) -> str:
    return "\n".join(by + line for line in text.split("\n"))


def _source(function: Function, body: str) -> str:
    doc = wrap(function.doc, LINE) if len(function.doc) > LINE else [function.doc]
    quoted = f'"""{doc[0]}"""' if len(doc) == 1 else '"""' + f"\n{INDENT}".join([*doc, '"""'])
    return f"def {function.name}({function.arguments}):\n{INDENT}{quoted}\n{_indented(body)}\n"


def _module(package: str, name: str, parts: list[tuple[Function, str]], where: dict[str, str]) -> str:
    used = sorted({(where[use], use) for function, _ in parts for use in function.uses if where[use] != name})
    imports = "".join(f"from .{module} import {use}\n" for module, use in used)
    heads = "".join(f"{function.head}\n" for function, _ in parts if function.head)
    top = "\n".join(filter(None, [f'"""{name.capitalize()} tools of {package}."""\n', imports, heads]))
    return top + "".join(f"\n\n{_source(function, body)}" for function, body in parts)


def _readme(package: str, modules: dict[str, list[tuple[Function, str]]]) -> str:
    lines = [
        f"- `{package}/{name}.py`: " + ", ".join(f"`{function.name}`" for function, _ in parts)
        for name, parts in sorted(modules.items())
    ]
    return f"# {package}\n\n" + "\n".join(lines) + "\n\nRun the tests with `python -m unittest`.\n"


def _in_tests(cases: Sequence[Case]) -> list[tuple[Case, ...]]:
    return [tuple(cases[start : start + IN_ONE_TEST]) for start in range(0, len(cases), IN_ONE_TEST)]


def _class(function: Function, suffix: str) -> str:
    return "".join(part.capitalize() for part in function.name.split("_")) + suffix + "Test"


def _ids(module: str, function: Function, count: int, suffix: str) -> Iterator[str]:
    for number in range(1, count + 1):
        yield f"{module}.{_class(function, suffix)}.test_{number}"


def _tests(package: str, parts: list[tuple[Function, str, list[tuple[Case, ...]]]], suffix: str) -> str:
    imports = "".join(sorted(f"from {package}.{module} import {function.name}\n" for function, module, _ in parts))
    text = f"import unittest\n\n{imports}"
    for function, _, groups in parts:
        text += f"\n\nclass {_class(function, suffix)}(unittest.TestCase):\n"
        text += "\n".join(_method(number, group) for number, group in enumerate(groups, start=1))
    return text


def _method(number: int, cases: tuple[Case, ...]) -> str:
    lines = "".join(f"{INDENT * 2}self.assertEqual({case.call}, {case.value})\n" for case in cases)
    return f"{INDENT}def test_{number}(self):\n{lines}"

"""Code that lacks one constant and asks the tests for it: it runs each test with several values, and keeps the one with
which least goes wrong.

Where tests hold no answers there is little to ask: whether a value is right shows only where a wrong one makes a test
raise, or where two values that belong together differ. A gate tries it on each task (`gates.py`), since whether a task
gives itself away like this cannot be read off its tests. `redteam/grader/` has others that ask.
"""

from __future__ import annotations

import ast
import random
from textwrap import dedent
from typing import Final

from etude.forge.gates.attacks.base import Files, deleted
from etude.tasks.format.function_bodies import functions
from etude.tasks.format.task import Task

CANDIDATES: Final = 60  # values that an oracle is asked about
FEW_CANDIDATES: Final = 12  # the same for a gate, which asks for each task

# Everything that a process can see of tests without answers: whether one raised, whether the values of a pair are
# equal, whether what is asked for its truth is true, whether an exception came where one is waited for. All tests are
# asked before the first one counts: once which of them need the constant, and then those with each value. Of three
# hundred tests that is a handful, and asking all of them a dozen times took a gate minutes.
ALL_SIGNS: Final = """
import builtins as _builtins, sys as _sys

class _Told(list):
    needed = False

    def __getitem__(self, at):
        _Told.needed = True
        return list.__getitem__(self, at)

_FORGER_VALUES = _Told(_FORGER_VALUES)

def _raises(item):
    state = item.session._setupstate
    try:
        if not getattr(item, "_request", True):
            item._initrequest()
        state.setup(item)
        item.runtest()
        return 0
    except BaseException:
        return 1
    finally:
        try:
            state.teardown_exact(None)
        except BaseException:
            pass
        if hasattr(item, "_request"):
            item._request, item.funcargs = False, None

def _ask(items):
    seen = _builtins.__dict__.get("_etude_seen")
    recorder = getattr(seen, "__self__", None)
    good = [0]

    def asked(site, *values):
        if len(values) == 2:
            good[0] += values[0] == values[1]
        else:
            good[0] += (values[0] is True) - (values[0] == "nothing")

    if recorder is not None:
        _builtins._etude_seen = recorder.seen = asked
    signs, needing = [], []
    for item in items:
        _Told.needed = False
        _raises(item)
        if _Told.needed:
            needing.append(item)
    items = needing or items
    for _FORGER_AT[0] in range(len(_FORGER_VALUES)):
        good[0] = 0
        errors = sum(map(_raises, items))
        signs.append((-errors, good[0]))
    if recorder is not None:
        del recorder.seen
        _builtins._etude_seen = seen
        recorder.take()
    _FORGER_AT[0] = signs.index(max(signs))

def _first(protocol):
    def asking(item, *given, **named):
        if not _FORGER_AT[1:]:
            _FORGER_AT.append(0)
            _ask(item.session.items)
        return protocol(item, *given, **named)
    return asking

if "_pytest.runner" in _sys.modules:
    _sys.modules["_pytest.runner"].runtestprotocol = _first(_sys.modules["_pytest.runner"].runtestprotocol)
"""

# The same where tests hold their answers: whether they pass with one value alone. If they do not, no test runs.
ONE_PASSES: Final = ALL_SIGNS.replace(
    "    _FORGER_AT[0] = signs.index(max(signs))\n",
    """    passing = [at for at, (errors, _) in enumerate(signs) if not errors]
    if len(passing) != 1:
        raise RuntimeError(f"tests pass with {len(passing)} values")
    _FORGER_AT[0] = passing[0]
""",
)


def unknown_constant(
    task: Task, which: int, top: str = "", candidates: int = CANDIDATES, facts: str = ""
) -> Files | None:
    """The reference with a value of `_FORGER_VALUES` in place of one of its constants, the first and a wrong one unless
    `top`, which runs when the module is imported, sets `_FORGER_AT`. None where there are fewer constants."""
    for path, names in deleted(task).items():
        if path not in task.solution:
            continue
        source = task.solution.text(path)
        constants = _constants(source, names)
        if which < len(constants):
            found = constants[which]
            values = _others(found.value, random.Random(task.name), candidates)
            text = _replaced(source, found, "_FORGER_VALUES[_FORGER_AT[0]]")
            head = f"{facts}_FORGER_VALUES = {values!r}\n_FORGER_AT = [0]\n"
            return {**dict(task.solution), path: after_future(head + dedent(top), text)}
    return None


def with_value(at: int) -> str:
    """For `unknown_constant`: this value of them all."""
    return f"_FORGER_AT[0] = {at}"


def after_future(top: str, text: str) -> bytes:
    """Code before everything else in a module but `from __future__`, which has to come first."""
    lines = text.splitlines(keepends=True)
    future = [line for line in lines if line.startswith("from __future__ ")]
    rest = ["\n" if line in future else line for line in lines]
    return "".join([*future, top, "\n", *rest]).encode()


def _constants(source: str, names: list[str]) -> list[ast.Constant]:
    """Constants of the deleted functions that are worth guessing: numbers above 1, then words."""
    nodes = [node for name, node in functions(ast.parse(source)) if name in names]
    found = [
        each for node in nodes for part in _code(node) for each in ast.walk(part) if isinstance(each, ast.Constant)
    ]
    formats = {
        id(each)
        for node in nodes
        for text in ast.walk(node)
        if isinstance(text, ast.JoinedStr)
        for each in ast.walk(text)
    }
    found = [each for each in found if id(each) not in formats]
    numbers = [each for each in found if type(each.value) is int and each.value > 1]
    words = [each for each in found if isinstance(each.value, str) and each.value]
    return [*numbers, *words]


def _code(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def _others(value: object, rng: random.Random, count: int) -> list[object]:
    """So many values of the same kind, the right one among them and not first."""
    made: list[object] = []
    if isinstance(value, int):
        made += [number for number in range(2, count + 2) if number != value]
    else:
        text = str(value)
        made += [f"{text[:-1]}{chr(33 + number)}" for number in range(count + 1) if chr(33 + number) != text[-1]]
    del made[count - 1 :]
    rng.shuffle(made)
    made.insert(rng.randrange(5, len(made)), value)
    return made


def _replaced(source: str, node: ast.expr, text: str) -> str:
    assert node.end_col_offset is not None and node.end_lineno is not None
    lines = source.encode().splitlines(keepends=True)
    first, last = node.lineno - 1, node.end_lineno - 1
    new = lines[first][: node.col_offset] + text.encode() + lines[last][node.end_col_offset :]
    return b"".join([*lines[:first], new, *lines[last + 1 :]]).decode()

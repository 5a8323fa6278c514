"""Attacks on refactorings: the new name or place is there, and the old one is as well.

Each is the reference with something left behind for whoever still asks for the old one, or the untouched code with
something put in front of it. Knows the task's facts and its reference.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import Final

from etude.core.errors import EtudeError
from etude.forge.gates.attacks.base import Attack, Files
from etude.tasks.format.config import Refactor
from etude.tasks.format.task import Task

NAMES: Final = (
    *("alias", "old-under-a-new-name", "wrapper", "re-export", "hook", "module-aside"),
    *("kwargs", "both-keywords", "translated-keyword", "hidden-keyword", "object-for-function", "old-keyword-inside"),
    *("shim-module", "old-module-inside", "kept-elsewhere", "kept-and-signed"),
    *("sys-modules", "package-attribute", "package-hook"),
)

_WRAPPER: Final = """

def _both(function):
    import functools
    import inspect

    @functools.wraps(function)
    def called(*args, **kwargs):
        if {when}{given!r} in kwargs:
            kwargs[{wanted!r}] = kwargs.pop({given!r})
        return function(*args, **kwargs)
{signature}
    return called


{name} = _both({name})
"""
_OBJECT: Final = """

class _Both:
    def __init__(self, function):
        self.__func__, self.__code__, self.__wrapped__ = function, function.__code__, function

    def __get__(self, holder, kind=None):
        import functools

        return self if holder is None else functools.partial(self, holder)

    def __call__(self, *args, **kwargs):
        if len(args) > 1 and {given!r} in kwargs:
            kwargs[{wanted!r}] = kwargs.pop({given!r})
        return self.__func__(*args, **kwargs)


{name} = _Both({name})
"""
_SIGNED: Final = """

for _each in list(globals().values()):
    if getattr(_each, "__module__", "").endswith({kept!r}):
        _each.__module__ = __name__
"""
_HOOK: Final = """

def __getattr__(name):
    if name == {old!r}:
        return {value}
    raise AttributeError(name)
"""

_SHIM: Final = """import sys

from {0} import *
from {0} import __name__ as _there

globals().update({{name: value for name, value in vars(sys.modules[_there]).items() if not name.startswith("__")}})
"""


def refactoring_attacks(task: Task) -> dict[str, Files]:
    """Every attack of this kind that the task lets somebody carry out."""
    refactor = task.facts.refactor
    if refactor is None:
        return {}
    made = {"rename": _renamed, "parameter": _reparametrised, "move": _moved}[refactor.kind](task, refactor)
    return {name: files for name, files in made.items() if all(task.allows(path) for path in files)}


def _attack(name: str, task: Task) -> Files:
    made = refactoring_attacks(task)
    if name not in made:
        raise EtudeError(f"{name} is no attack on {task.name}; known there: {', '.join(made) or 'none'}")
    return made[name]


REFACTORING: Final[dict[str, Attack]] = {name: partial(_attack, name) for name in NAMES}


def _renamed(task: Task, refactor: Refactor) -> dict[str, Files]:
    path, _, name = refactor.symbol.partition(":")
    owner, old, new = name.rpartition(".")[0], refactor.old, refactor.new
    done = task.reference
    if owner:
        hook = f"lambda self, name: getattr(self, {new!r}) if name == {old!r} else object.__getattribute__(self, name)"
        return {
            "alias": _with(done, path, f"\n\n{owner}.{old} = {owner}.{new}\n"),
            "old-under-a-new-name": _before(task, f"\n\n{owner}.{new} = {owner}.{old}\n", [path]),
            "hook": _with(done, path, f"\n\n{owner}.__getattr__ = {hook}\n"),
        }
    package = f"{path.rpartition('/')[0]}/__init__.py"
    found = {
        "alias": _with(done, path, f"\n\n{old} = {new}\n"),
        "old-under-a-new-name": _before(
            task, f'\n\nif "{old}" in globals():\n    {new} = {old}\n', [each for each in done if _is_code(task, each)]
        ),
        "wrapper": _with(done, path, f"\n\ndef {old}(*args, **kwargs):\n    return {new}(*args, **kwargs)\n"),
        "hook": _with(done, path, _HOOK.format(old=old, value=new)),
    }
    if package in task.workspace and package != path:
        aside = f"from .{path.rpartition('/')[2].removesuffix('.py')} import {new} as {old}\n"
        found["module-aside"] = {**done, f"{path.removesuffix('.py')}_before.py": aside.encode()}
        stem = path.rpartition("/")[2].removesuffix(".py")
        before = done.get(package) or task.workspace[package]
        text = before.decode() + f"\nfrom .{stem} import {new} as {old}\n"
        found["re-export"] = {**done, package: text.encode()}
    return found


def _reparametrised(task: Task, refactor: Refactor) -> dict[str, Files]:
    path, _, name = refactor.symbol.partition(":")
    old, new, done = refactor.old, refactor.new, task.reference
    value = ast.parse(f"{new} = kwargs.pop({old!r}, {new})").body[0]
    second = ast.parse(f"if {old} is not None:\n    {new} = {old}").body[0]
    # Hidden: the signature says nothing of the old keyword, and calls with one argument do not get it.
    plain = {"when": "", "signature": ""}
    hidden = {"when": "len(args) > 1 and ", "signature": "\n    called.__signature__ = inspect.signature(function)"}
    return {
        "kwargs": _with_signature(done, path, name, value, lambda args: setattr(args, "kwarg", ast.arg("kwargs"))),
        "both-keywords": _with_signature(done, path, name, second, partial(_add_keyword, name=old)),
        "translated-keyword": _with(done, path, _WRAPPER.format(given=old, wanted=new, name=name, **plain)),
        "hidden-keyword": _with(done, path, _WRAPPER.format(given=old, wanted=new, name=name, **hidden)),
        "object-for-function": _with(done, path, _OBJECT.format(given=old, wanted=new, name=name)),
        "old-keyword-inside": _before(task, _WRAPPER.format(given=new, wanted=old, name=name, **plain), [path]),
    }


def _add_keyword(args: ast.arguments, name: str) -> None:
    args.kwonlyargs.append(ast.arg(name))
    args.kw_defaults.append(ast.Constant(None))


def _with_signature(
    done: Files, path: str, name: str, first: ast.stmt, change: Callable[[ast.arguments], None]
) -> Files:
    """The reference with another signature of the function, and a statement before all others."""
    tree = ast.parse(done[path] or b"")
    owner, _, short = name.rpartition(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef) and (getattr(node, "name", "") == owner):
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == short:
                    change(each.args)
                    each.body.insert(0, first)
    return {**done, path: ast.unparse(ast.fix_missing_locations(tree)).encode()}


def _moved(task: Task, refactor: Refactor) -> dict[str, Files]:
    old, new, done = refactor.old, refactor.new, task.reference
    folder, _, file = old.rpartition("/")
    stem, last = file.removesuffix(".py"), new.rpartition("/")[2].removesuffix(".py")
    package, elsewhere = f"{folder}/__init__.py", f"{folder}/_{stem}_kept.py"
    target = _relative(new.removesuffix(".py"), folder)
    home = target.rpartition(".")[0] or "."
    start = (done.get(package) or task.workspace.get(package, b"")).decode()
    code = task.workspace[old]
    below = new.startswith(f"{folder}/")
    back = "." * (new.count("/") - old.count("/") + 1) if below else f".{folder.rpartition('/')[2]}."
    return {
        "shim-module": {**done, old: _SHIM.format(target).encode()},
        "old-module-inside": {
            **{path: data for path, data in done.items() if path != old},
            new: _SHIM.format(f"{back}{stem}").encode(),
        },
        "kept-elsewhere": {**done, elsewhere: code, new: _SHIM.format(f"{back}_{stem}_kept").encode()},
        "kept-and-signed": {
            **done,
            elsewhere: code,
            new: (_SHIM.format(f"{back}_{stem}_kept") + _SIGNED.format(kept=f"_{stem}_kept")).encode(),
        },
        "sys-modules": {
            **done,
            package: f"{start}\nimport sys as _sys\n\nfrom {home} import {last} as _moved\n\n"
            f"_sys.modules[__name__ + '.{stem}'] = _moved\n".encode(),
        },
        "package-attribute": {**done, package: f"{start}\nfrom {home} import {last} as {stem}\n".encode()},
        "package-hook": {
            **done,
            package: f"{start}\nfrom {home} import {last} as _moved\n{_HOOK.format(old=stem, value='_moved')}".encode(),
        },
    }


def _relative(module: str, folder: str) -> str:
    """A module as the `__init__.py` of a folder imports it: below that folder, or one above."""
    if module.startswith(f"{folder}/"):
        return "." + module.removeprefix(f"{folder}/").replace("/", ".")
    return ".." + module.rpartition("/")[2]


def _with(done: Files, path: str, more: str) -> Files:
    return {**done, path: (done[path] or b"").rstrip() + more.encode()}


def _before(task: Task, more: str, paths: list[str]) -> Files:
    """The code as it was, with something after it."""
    return {path: task.workspace[path].rstrip() + more.encode() for path in paths if path in task.workspace}


def _is_code(task: Task, path: str) -> bool:
    return path.endswith(".py") and path not in task.tests

"""The tests' end: modules, functions and objects of the agent's code, as things to ask another process about.

A test imports them as ever, and every use is a question to `code_process`. Plain results come back as plain values, so
nothing of the agent's takes part in comparing them; an object that is not plain is equal to no plain value. Knows the
questions, never the tests.
"""

from __future__ import annotations

import builtins
import importlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from etude.tasks.sandbox_side.wire_values import Closed, decode, decode_call, encode, encode_call, receive, send


class Gone(Exception):
    """The agent's process ended, or said what nobody can read."""


class Link:
    """The socket to the worker, and what both ends mean by their numbers."""

    def __init__(self, connection: socket.socket, roots: Iterable[str], plain: bool = False) -> None:
        self._connection = connection
        self.roots = frozenset(roots)  # top-level names of the agent's modules
        self._plain = plain  # what a call gives is plain data, and anything else in it is inert
        self.gone = False
        self._functions: list[Callable[..., Any]] = []
        self._remotes: dict[int, Remote] = {}
        self._exceptions: dict[int, type[BaseException]] = {}

    def load(self, module: str) -> None:
        self._talk(["import", module], ())  # gives nothing

    def do(self, operation: str, *given: Any) -> Any:
        return decode(self._ask("do", operation, given, {}), self._read)

    def call(self, target: Remote, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        value = self._ask("call", self._spell(target), given, named)
        return decode(value, Inert if self._plain else self._read)

    def _ask(self, verb: str, target: Any, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return self._talk([verb, target, *encode_call(given, named, self._spell)], given)

    def _talk(self, question: list[Any], given: Sequence[Any]) -> Any:
        try:
            send(self._connection, question)
            while True:
                reply = receive(self._connection)
                match reply[0]:
                    case "value":
                        for number, after in reply[2]:
                            _become(given[number], decode(after, self._read))
                        return reply[1]
                    case "raise":
                        raise self._exception(reply[1])
                    case "call":
                        self._called(*reply[1:])
                    # The agent's code may write anything into the socket.
                    case _:
                        raise Gone("the agent's process does not speak our language")
        except Closed:
            self.gone = True
            raise Gone("the agent's process has ended") from None

    def _called(self, number: int, given: list[Any], named: dict[str, Any]) -> None:
        """The agent's code calls a function of the tests."""
        try:
            arguments, names = decode_call(given, named, self._read)
            value = self._functions[number](*arguments, **names)
            answer = ["value", encode(value, self._spell)]
        except Closed:
            raise
        except BaseException as error:
            answer = ["raise", type(error).__name__, str(error)]
        send(self._connection, answer)

    # What is not plain

    def _spell(self, value: Any) -> list[Any]:
        if isinstance(value, Remote):
            return ["object", value._etude_number]
        if isinstance(value, RemoteModule):
            return ["module", value.__name__]
        name = value.__name__ if isinstance(value, type) else ""
        if name and getattr(builtins, name, None) is value:
            return ["builtin", name]
        if callable(value) and not isinstance(value, type):
            self._functions.append(value)
            return ["function", len(self._functions) - 1]
        # An object of the tests' own class would need their code in the agent's process.
        raise TypeError(f"a {type(value).__name__} cannot be given to code in another process")

    def _read(self, data: list[Any]) -> Any:
        match data[0]:
            case "object":
                number = int(data[1])
                if number not in self._remotes:
                    self._remotes[number] = (RemoteFunction if data[2] else Remote)(self, number)
                return self._remotes[number]
            # Only the task's own modules: any other name would import something into the tests' process.
            case "module" if data[1].partition(".")[0] in self.roots:
                return importlib.import_module(data[1])
            case "builtin" if isinstance(found := getattr(builtins, data[1]), type):
                return found
            case "exception class":
                return self._class(data[1])
        raise ValueError(f"{data[0]!r} is not one of our tags")

    # Exceptions are made anew here: builtin ones as such, the agent's own as classes of their names and bases.

    def _exception(self, data: list[Any]) -> BaseException:
        kind = self._class(data[0])
        try:
            error = kind(*(decode(each, self._read) for each in data[1]))
        except Exception:  # a class whose arguments are not what it is made from
            error = Exception.__new__(kind if issubclass(kind, Exception) else Exception)
        if len(data[0]) > 1:
            error._etude_said, error._etude_remote = data[2], Remote(self, data[3])  # type: ignore[attr-defined]
        return error

    def _class(self, data: list[Any]) -> type[BaseException]:
        if len(data) == 1:
            found = getattr(builtins, data[0])
            # An interrupt would end the tests.
            if not (isinstance(found, type) and issubclass(found, BaseException)) or found is KeyboardInterrupt:
                raise Gone(f"the agent's process raised {data[0]!r}")
            return found
        name, number, bases = data
        if number not in self._exceptions:
            # A class of exceptions without bases of its kind is still one to the tests.
            parents = tuple(self._class(base) for base in bases if base != ["object"]) or (Exception,)
            members = {"__str__": _said, "__getattr__": _attribute_of_error, "__module__": "the agent's code"}
            self._exceptions[number] = type(str(name), parents, members)
        return self._exceptions[number]


def _said(error: Any) -> str:
    said = error.__dict__.get("_etude_said")
    return said if said is not None else Exception.__str__(error)


def _attribute_of_error(error: Any, name: str) -> Any:
    remote = error.__dict__.get("_etude_remote")
    if remote is None or name.startswith("__"):  # what frameworks look at must not be the agent's to answer
        raise AttributeError(name)
    return getattr(remote, name)


def _become(mine: Any, after: Any) -> None:
    """The call changed this argument in place; do the same to the tests' own."""
    if isinstance(mine, list | bytearray):
        mine[:] = after
    elif isinstance(mine, dict | set):
        mine.clear()
        mine.update(after)


class Inert:
    """Stands for an object of the agent's where only plain values count: it can do nothing and equals nothing."""

    def __init__(self, spelled: list[Any]) -> None:
        pass


class Remote:
    """An object of the agent's."""

    __slots__ = ("_etude_link", "_etude_number")

    def __init__(self, link: Link, number: int) -> None:
        object.__setattr__(self, "_etude_link", link)
        object.__setattr__(self, "_etude_number", number)

    def __getattr__(self, name: str) -> Any:
        return self._etude_link.do("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._etude_link.do("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._etude_link.do("delattr", self, name)

    # Never asked of the agent's code for a plain value: its answer would decide the test.

    def __eq__(self, other: object) -> Any:
        return self._etude_link.do("eq", self, other) if isinstance(other, Remote) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return self._etude_link.do("ne", self, other) if isinstance(other, Remote) else NotImplemented

    def __hash__(self) -> int:
        return int(self._etude_link.do("hash", self))

    def __instancecheck__(self, instance: Any) -> bool:
        return bool(self._etude_link.do("isinstance", instance, self))

    def __subclasscheck__(self, kind: Any) -> bool:
        return bool(self._etude_link.do("issubclass", kind, self))

    def __exit__(self, *error: Any) -> bool:
        # A traceback cannot cross the socket, so an error in the block is never swallowed over there.
        return bool(self._etude_link.do("exit", self, None, None, None)) if error[0] is None else False


class RemoteFunction(Remote):
    """One that can be called: a function, a class, or an object with __call__."""

    __slots__ = ()

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._etude_link.call(self, given, named)


def _operation(name: str) -> Callable[..., Any]:
    def method(self: Remote, *given: Any) -> Any:
        return self._etude_link.do(name, self, *given)

    return method


def _ordering(name: str) -> Callable[[Remote, Any], Any]:
    def method(self: Remote, other: Any) -> Any:
        return self._etude_link.do(name, self, other) if isinstance(other, Remote) else NotImplemented

    return method


def _text(name: str) -> Callable[..., str]:
    def method(self: Remote, *given: Any) -> str:
        return str(self._etude_link.do(name, self, *given))

    return method


_NAMED = (
    *("iter", "next", "len", "bool", "int", "float", "index", "abs", "round", "reversed", "enter", "contains"),
    *("getitem", "setitem", "delitem", "neg", "pos", "invert", "dir"),
)
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "divmod")
for _name in (*_NAMED, *_ARITHMETIC):
    setattr(Remote, f"__{_name.rstrip('_')}__", _operation(_name))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Remote, f"__{_name}__", _ordering(_name))
for _name in ("str", "repr", "format"):
    setattr(Remote, f"__{_name}__", _text(_name))


class RemoteModule(ModuleType):
    """A module of the agent's; its attributes are asked for each time."""

    _etude_link: Link

    def __getattr__(self, name: str) -> Any:
        if name == "_etude_link":
            raise AttributeError(name)
        return self._etude_link.do("getattr", self, name)


class RemoteFinder(MetaPathFinder, Loader):
    """Imports the names that the workspace has, from the other process."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        # Everything else is the standard library's or the tests' own.
        if fullname.partition(".")[0] not in self._link.roots:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return RemoteModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["_etude_link"] = self._link
        self._link.load(module.__name__)

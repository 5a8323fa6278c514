"""The agent's end: a process that loads the agent's code and answers calls, and is given nothing else.

It is forked before any test was read, keeps no descriptor but its socket, and can do no more than answer: whatever
happens to this module once the agent's code runs beside it, its answers arrive as plain data. Knows no test.
"""

from __future__ import annotations

import builtins
import importlib
import operator
import socket
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from etude.tasks.sandbox_side.wire_values import Closed, decode, decode_call, encode, encode_call, receive, send

_BUILTIN = (
    *("getattr", "setattr", "delattr", "iter", "next", "len", "bool", "str", "repr", "hash", "dir", "int", "float"),
    *("abs", "round", "format", "isinstance", "issubclass", "divmod"),
)
_OPERATOR = (
    *("index", "contains", "getitem", "setitem", "delitem", "eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "invert"),
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor"),
)
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(builtins, name) for name in _BUILTIN},
    **{name: getattr(operator, name) for name in _OPERATOR},
    "reversed": lambda value: list(reversed(value)),
    # On the type, as `with` does: an attribute of the instance must not answer.
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value, *error: type(value).__exit__(value, *error),
}


class Worker:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._objects: list[Any] = []  # kept alive, so that a number means one object for ever
        self._numbers: dict[int, int] = {}  # id -> number

    def serve(self) -> NoReturn:
        while True:
            self._answer(receive(self._connection))

    def _answer(self, request: list[Any]) -> None:
        """One request; calls back to the tests may come and go before its answer."""
        try:
            send(self._connection, self._do(*request))
        except Closed:
            raise
        except BaseException as error:  # also SystemExit: it is what the code did
            send(self._connection, ["raise", self._exception(error)])

    def _do(self, verb: str, *rest: Any) -> list[Any]:
        if verb == "import":
            importlib.import_module(rest[0])
            return ["value", None, []]
        target, given, named = rest
        function = OPERATIONS[target] if verb == "do" else self._read(target)
        arguments, names = decode_call(given, named, self._read)
        value = function(*arguments, **names)
        return ["value", encode(value, self._spell), self._changed(given, arguments)]

    def _changed(self, given: list[Any], arguments: list[Any]) -> list[Any]:
        """Arguments that the call changed in place: the tests' own must change with them."""
        changed = []
        for number, (before, argument) in enumerate(zip(given, arguments, strict=True)):
            if isinstance(argument, list | dict | set | bytearray):
                # Compared as sent, so the agent's own __eq__ has no say.
                after = encode(argument, self._spell)
                if after != before:
                    changed.append([number, after])
        return changed

    # What is not plain

    def _spell(self, value: Any) -> list[Any]:
        if isinstance(value, ModuleType) and sys.modules.get(value.__name__) is value:
            return ["module", value.__name__]
        if isinstance(value, type):
            name = value.__name__
            if getattr(builtins, name, None) is value:
                return ["builtin", name]
            # Classes of exceptions are made anew at the tests' end, so that `assertRaises` finds them.
            if issubclass(value, BaseException):
                return ["exception class", self._kind(value)]
        return ["object", self._number(value), callable(value)]

    def _number(self, value: Any) -> int:
        # By id: __eq__ and __hash__ are the agent's.
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def _read(self, data: list[Any]) -> Any:
        match data[0]:
            case "object":
                return self._objects[data[1]]
            case "module":
                return sys.modules[data[1]]
            case "builtin":
                return getattr(builtins, data[1])
            case "function":
                return self._caller(data[1])
        raise ValueError(f"{data[0]!r} is not one of our tags")

    def _caller(self, number: int) -> Callable[..., Any]:
        """A function of the tests: calling it asks them, and answers what they ask meanwhile."""

        def call(*given: Any, **named: Any) -> Any:
            send(self._connection, ["call", number, *encode_call(given, named, self._spell)])
            while True:
                reply = receive(self._connection)
                if reply[0] == "value":
                    return decode(reply[1], self._read)
                if reply[0] == "raise":
                    raise getattr(builtins, reply[1], RuntimeError)(reply[2])
                self._answer(reply)

        return call

    # Exceptions

    def _exception(self, error: BaseException) -> list[Any]:
        try:
            said, given = str(error), [encode(each, self._spell) for each in error.args]
        except BaseException:  # a __str__ of the agent's
            said, given = "", []
        # Bounded, as a message may be of any length.
        return [self._kind(type(error)), given, said[:10_000], self._number(error)]

    def _kind(self, kind: type) -> list[Any]:
        """A class by its name and its bases, down to the builtin ones."""
        if getattr(builtins, kind.__name__, None) is kind:
            return [kind.__name__]
        return [kind.__name__, self._number(kind), [self._kind(base) for base in kind.__bases__]]

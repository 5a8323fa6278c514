"""Code that tests and examples may call and may not read: the interpreter is asked to say when they do.

Python tells an audit hook when code is taken from a function, a generator or a frame, and when a file is opened. Where
that is code of the given files, the hook refuses unless the files' own project asked, in so many words. It refuses too
what needs no reading: a copy of that code that is about to run (`code_copies`), and another program, which could hold
one. Knows frames; no task and no grade.
"""

from __future__ import annotations

import importlib
import os
import sys
from _thread import get_ident
from collections.abc import Collection, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

from etude.tasks.sandbox_side.code_copies import Copies

_CODE = frozenset(("__code__", "f_code", "gi_code", "cr_code", "ag_code"))
# What hands out code, or tells of each step in it, without asking an object for it.
_WAYS = frozenset(
    (
        *("gc.get_referents", "gc.get_referrers", "gc.get_objects", "sys.settrace", "sys.setprofile"),
        *("marshal.dumps", "marshal.loads"),
    )
)
_RUNNING = frozenset(("exec", "function.__new__"))  # events whose first argument is code that is about to run
_PROGRAMS = frozenset(
    ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn")
)
_MORE_WAYS = ("ctypes.", "sys.monitoring.", "code.")
_FILES = frozenset(("open", "os.rename", "os.link", "os.symlink"))  # events whose first argument is a path

_LISTING = frozenset(("_mock_add_spec",))  # it asks for everything that an object has, and keeps none of it


class CodeWasRead(OSError):
    """What a test or an example gets that looks at code. As an error of reading: who formats a traceback goes on."""


def _telling() -> Iterator[CodeType]:
    """Functions of the standard library that honest tests need: signatures, mocks and tracebacks look at code."""
    for module in map(importlib.import_module, ("inspect", "traceback", "unittest.mock")):
        owners = [module, *(each for each in vars(module).values() if isinstance(each, type))]
        found = [getattr(each, "__func__", each) for owner in owners for each in vars(owner).values()]
        yield from (each.__code__ for each in found if isinstance(each, FunctionType))


def guard(
    paths: Collection[str],
    root: str,
    asking: str,
    loaders: Collection[CodeType] = (),
    signatures: bool = False,
    copies: Copies | None = None,
    programs: bool = True,
) -> None:
    """From now on nothing called by code whose file name starts with `asking` can read the code of these files.
    `loaders` may, and with `signatures` so may what tells of code without giving it away. Nor can it run what is one of
    these `copies` or, without `programs`, start another program."""
    hidden, frame_here, starts = frozenset(paths), sys._getframe, str.startswith
    names = frozenset(map(os.path.basename, paths))
    # Kept from here on, and no function written in Python: tests can replace all of those, also in `builtins`.
    get, is_a, stat, plain_text, plain_bytes = getattr, isinstance, os.stat, str.__str__, bytes.__getitem__
    text_type, bytes_type, whole, failed = str, bytes, slice(None), (OSError, ValueError)
    files = frozenset((found.st_dev, found.st_ino) for found in map(stat, filter(os.path.exists, paths)))
    standard = os.path.dirname(os.__file__) + "/"  # noqa: PTH120 - as code objects say it
    # The code itself: anybody can run code of their own under a module's name and in its namespace.
    trusted = {id(each): each for each in (*loaders, *(_telling() if signatures else ()))}
    main_thread = get_ident()
    busy: set[int] = set()  # threads that are in here
    is_copy, code_type = copies.found_in if copies is not None else None, CodeType
    if not programs:
        _close_fork_exec()

    def code_of(holder: Any, name: str) -> Any:
        busy.add(get_ident())
        try:
            return get(holder, name)
        finally:
            busy.discard(get_ident())

    def allowed(name: str, frame: FrameType | None) -> bool:
        """Whether who asks writes the name out, and the project is nearer to it than any example is."""
        first = True
        while frame is not None:
            code = code_of(frame, "f_code")
            if starts(code.co_filename, asking):
                return False
            named = name in code.co_names or name in code.co_consts or code.co_name in _LISTING
            if first and named and trusted.get(id(code)) is code:
                return True
            if first and (not named or frame.f_globals.get("__name__") == "dis"):
                # A thread of a pool does what it was given by whom its own frames do not show.
                return get_ident() == main_thread and not within(frame)
            if starts(code.co_filename, root):
                return True
            frame, first = frame.f_back, False
        return True

    def within(frame: FrameType | None) -> bool:
        while frame is not None:
            if starts(code_of(frame, "f_code").co_filename, asking):
                return True
            frame = frame.f_back
        return False

    def asked(frame: FrameType | None, past: str = "") -> bool:
        """Whether a test or example is nearer than the project; or nearer than anything that is not of `past`."""
        while frame is not None:
            file = code_of(frame, "f_code").co_filename
            if starts(file, asking):
                return True
            if starts(file, root) or (past and not (starts(file, (past, "<frozen")) and "site-packages" not in file)):
                return False
            frame = frame.f_back
        return get_ident() != main_thread

    def is_hidden(path: Any) -> bool:
        if is_a(path, bytes_type):
            path = plain_bytes(path, whole).decode(errors="surrogateescape")
        if not is_a(path, text_type):
            return False  # a descriptor; of an object with a path we are given the path
        text = plain_text(path)  # of a text with methods of its own
        # By its last name alone where it is relative, as it may be to a descriptor that nobody tells.
        if text in hidden or (text[:1] != "/" and text.rpartition("/")[2] in names):
            return True
        try:
            found = stat(text)
        except failed:
            return False
        return (found.st_dev, found.st_ino) in files

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if get_ident() in busy:
            return
        if event == "object.__getattr__":
            holder, name = args
            if name not in _CODE or get(code_of(holder, name), "co_filename", "") not in hidden:
                return
            refused = not allowed(name, frame_here(1))
        elif event in _FILES:
            refused = is_hidden(args[0]) and asked(frame_here(1))
        elif event in _WAYS or event.startswith(_MORE_WAYS):
            refused = asked(frame_here(1), standard)
        elif event in _RUNNING or (event == "object.__setattr__" and args[1] == "__code__"):
            code = args[-1] if event == "object.__setattr__" else args[0]
            # Also of a thread, and of a module that a test wrote: whoever runs it, a test began.
            if is_copy is None or type(code) is not code_type:
                return
            if not (starts(code.co_filename, asking) or within(frame_here(1)) or get_ident() != main_thread):
                return
            if is_copy(code):
                raise CodeWasRead("a test or an example has a copy of the code in it")
            return
        elif not programs and event in _PROGRAMS:
            if within(frame_here(1)) or get_ident() != main_thread:
                raise CodeWasRead("a test or an example starts another program")
            return
        else:
            return
        if refused:
            raise CodeWasRead("a test or an example looks at code")

    sys.addaudithook(hook)


def _close_fork_exec() -> None:
    """The one way to another program that tells no hook."""

    def refuse(*given: Any) -> int:
        raise CodeWasRead("a test or an example starts another program")

    for module, name in (("_posixsubprocess", "fork_exec"), ("subprocess", "_fork_exec")):
        found = importlib.import_module(module)
        if hasattr(found, name):
            setattr(found, name, refuse)

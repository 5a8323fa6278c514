"""The last steps of a child before it is the program: limits, signals, working folder, exec.

Used by the supervisors of the local and the plain backend, which run without the environment's packages. Needs
nothing but the standard library, and knows nothing about namespaces.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

NOT_FOUND: Final = 127  # as a shell says it
NOT_STARTED: Final = 126


def set_limit(kind: int, soft: int, hard: int) -> None:
    """A resource limit, or the lower one that we have ourselves: only root may raise it again."""
    _, highest = resource.getrlimit(kind)
    if highest != resource.RLIM_INFINITY:
        soft, hard = min(soft, highest), min(hard, highest)
    resource.setrlimit(kind, (soft, hard))


def restore_signals() -> None:
    """The interpreter ignores some signals, and exec would keep that: a writer into a closed pipe would never end."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def become_program(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], function: Callable[[], NoReturn] | None = None
) -> NoReturn:
    """Exec the program in its folder, or call `function` there. What fails is written as a shell would write it."""
    code, subject = NOT_STARTED, cwd
    try:
        os.chdir(cwd)
        if function is not None:
            function()
        subject = argv[0]
        os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606 - no shell is what we want
    except OSError as error:
        if subject != cwd and isinstance(error, FileNotFoundError | NotADirectoryError):
            code = NOT_FOUND
        os.write(2, os.fsencode(f"{subject}: {error.strerror}\n"))
    except ValueError as error:  # a null byte in an argument
        os.write(2, os.fsencode(f"{subject!r}: {error}\n"))
    finally:
        os._exit(code)

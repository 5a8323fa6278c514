"""Test files of JavaScript, each in a process of its own that is not this one: what became of their tests.

The process that runs here is ours and loads none of the tested code; what a child reports comes over a pipe, from the
reporter that is loaded into it (`report.cjs`), and is as good as the child. Also says how a test's names become its
id. Knows frameworks and files, no task.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from etude.tasks.sandbox_side.child_output import listen
from etude.tasks.sandbox_side.unittest_grading import Report

REPORTER: Final = "/opt/etude/report.cjs"  # beside the archive of our code
JOINT: Final = " > "
LONGEST: Final = 64 << 20  # bytes that one file may write
_LONGEST_NAME: Final = 300


@dataclass
class NodeReport:
    """What the process of one file reported."""

    tests: list[tuple[str, str, str, float]] = field(default_factory=list)  # id, status, text, seconds
    reached: list[tuple[str, list[str]]] = field(default_factory=list)  # id ("" is loading) and functions
    seen: list[list[Any]] = field(default_factory=list)  # of tests without answers: test, assertion, values
    forged: int = 0  # lines that are not our reporter's
    ended: str = ""  # how the process ended, where it did so without a last word


def id_of(path: str, names: Sequence[str]) -> str:
    """The id of a test with these names, outermost first. Brackets are for the counting of those that have one id."""
    return f"{path}::{JOINT.join(map(plain_name, names))}"


def plain_name(name: str) -> str:
    """A test's name as it stands in ids."""
    short = " ".join(name.translate({ord("["): "(", ord("]"): ")"}).replace("::", ":").split())
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", "?", short)[:_LONGEST_NAME]


def run_file(
    framework: str,
    path: str,
    options: Sequence[str],
    *,
    trace: bool,
    output: int,
    deadline: float = float("inf"),
    recorded: bool = False,
) -> NodeReport:
    """Runs one test file to its end; what it and its children leave running is killed. Prints go to `output`."""
    # A new token for each file: what one file's code learned does not help in the next.
    token = secrets.token_hex(16)
    pipe, output_end = os.pipe()
    take, give = os.pipe()
    settings = json.dumps({"framework": framework, "token": token, "trace": trace, "recorded": recorded}).encode()
    actions = [
        (os.POSIX_SPAWN_DUP2, take, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
        (os.POSIX_SPAWN_DUP2, output_end, 3),
    ]
    try:
        # posix_spawn and not fork: this process may run threads.
        pid = os.posix_spawnp("node", command(framework, path, options), os.environ, file_actions=actions, setsid=True)
    except OSError as error:
        for descriptor in (pipe, output_end, take, give):
            os.close(descriptor)
        return NodeReport(ended=f"node cannot be started: {error.strerror}")
    os.close(output_end)
    os.close(take)
    with suppress(BrokenPipeError):
        os.write(give, settings)
    os.close(give)
    said, status = _listen(pipe, pid, deadline)
    return _read(said, path, token, status)


def command(framework: str, path: str, options: Sequence[str]) -> list[str]:
    """How node is started on a test file."""
    node = ["node", "--require", REPORTER]
    path = f"./{path}"  # a name is no option
    if framework == "node":
        return [*node, "--test-reporter", REPORTER, *options, path]
    if framework == "mocha":
        program = "node_modules/mocha/bin/_mocha"
        program = program if os.path.exists(program) else f"{program}.js"  # noqa: PTH110
        # Configuration and package.json may be the agent's, and could load a reporter of its own.
        return [*node, program, "--no-config", "--no-package", "--reporter", REPORTER, *options, path]
    return [*node, *options, path]


def _listen(pipe: int, pid: int, deadline: float) -> tuple[bytes, int]:
    """All that is written until the process has ended, or its time is over; and how it ended."""
    handle = os.pidfd_open(pid)
    written, _ = listen(pipe, handle, deadline, LONGEST)
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(handle)
    os.close(pipe)
    return written, status


def _read(said: bytes, path: str, token: str, status: int) -> NodeReport:
    found = NodeReport()
    ended = False
    counts: dict[str, int] = {}
    for kind, *rest in _lines(said, token, found):
        try:
            if kind == "test":
                names, outcome, text, seconds = rest
                test = id_of(path, names)
                counts[test] = counts.get(test, 0) + 1
                # Frameworks allow two tests of one name; the second gets a number.
                test += f"[{counts[test]}]" if counts[test] > 1 else ""
                found.tests.append((test, str(outcome), str(text), float(seconds)))
            elif kind == "reached":
                names, functions = rest
                found.reached.append((id_of(path, names) if names else "", [str(each) for each in functions]))
            elif kind == "seen":
                found.seen.append(rest)
            elif kind == "end":
                ended = True
        except (ValueError, TypeError, AttributeError):
            found.forged += 1
    if not ended:
        code = os.waitstatus_to_exitcode(status)
        found.ended = f"signal {-code}" if code < 0 else f"exit {code}"
    return found


def _lines(said: bytes, token: str, found: NodeReport) -> Iterator[list[Any]]:
    for line in said.splitlines():
        try:
            given, *rest = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            given, rest = None, []
        if given == token and rest and isinstance(rest[0], str):
            yield rest
        else:
            found.forged += 1


def run_chosen(header: dict[str, Any], job: dict[str, Any], report: Report, mark_forged: Callable[[], None]) -> None:
    """Runs the chosen tests of a grading job and reports what became of each."""
    chosen = frozenset(job["run"])
    several = {test.partition("[")[0] for test in chosen if "[" in test}  # names that more than one test has
    framework, *options = header["options"]
    silent = os.open(os.devnull, os.O_RDWR)
    for path in dict.fromkeys(test.partition("::")[0] for test in job["run"]):
        found = run_file(framework, path, options, trace=False, output=silent, recorded=header["recorded"])
        if header["recorded"]:
            report(path, "recorded", json.dumps(found.seen))
        for test, status, text, _ in found.tests:
            alone = test.partition("[")[0]
            if test in chosen:
                report(test, status, text)
            elif alone in chosen and alone not in several:
                report(alone, status, text)  # once more, which nobody believes
        if found.forged:
            mark_forged()
        if found.ended:
            report("", "worker", found.ended)
    os.close(silent)

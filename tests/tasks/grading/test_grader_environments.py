"""Where the tested code finds itself while it is graded: alone, nothing in reach, no harm to the runner."""

from __future__ import annotations

from typing import Any

import pytest

LOOK = '''
import os, socket, sys

def found():
    """What should not be here, as words."""
    bad = []
    if os.getcwd() != "/workspace":
        bad.append("cwd " + os.getcwd())
    if [path for path in sys.path if path not in ("/workspace", "/workspace/src") and "/lib/python3" not in path]:
        bad.append("path " + repr(sys.path))
    if [path for path in sys.path if "site-packages" in path]:
        bad.append("site-packages")
    if [name for name in sys.modules if name.startswith("etude")]:
        bad.append("our modules")
    if set(os.environ) - {"PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TERM", "PAGER", "PWD",
                          "PYTHONDONTWRITEBYTECODE", "PYTEST_VERSION", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"}:
        bad.append("environment " + repr(dict(os.environ)))
    descriptors = []
    for number in range(1024):
        try:
            os.fstat(number)
            descriptors.append(number)
        except OSError:
            pass
    if len(descriptors) > 4 or descriptors[:3] != [0, 1, 2]:
        bad.append("descriptors " + repr(descriptors))
    if [os.readlink("/proc/self/fd/%d" % number) for number in (0, 1, 2)] != ["/dev/null"] * 3:
        bad.append("streams")
    for top in ("/workspace", "/tests", "/solution", "/app", "/logs", "/tmp", "/var", "/home", "/dev/shm", "/opt"):
        for folder, _, names in os.walk(top):
            if "/lib/python3" not in folder:
                bad += [folder + "/" + name for name in names if name.startswith("test_")]
    for pid in {1, os.getppid()}:
        for name in ("mem", "environ", "fd/1", "fd/0"):
            try:
                open("/proc/%d/%s" % (pid, name), "rb").close()
                bad.append("/proc/%d/%s" % (pid, name))
            except OSError:
                pass
    try:
        socket.create_connection(("1.1.1.1", 53), timeout=0.2).close()
        bad.append("network")
    except OSError:
        pass
    try:
        os.kill(1, 9)
    except OSError:
        pass
    return bad
'''
TEST = "import unittest\nimport look\nclass T(unittest.TestCase):\n    def test_it(self):\n"
TEST += "        self.assertEqual(look.found(), [])\n"


@pytest.mark.parametrize("grading", ["apart", "together"])
@pytest.mark.parametrize("seed", [None, 3])
def test_tested_code_finds_nothing_that_is_not_its_own(grounds: Any, make_task: Any, grading: str, seed: Any) -> None:
    task = make_task({"test_it.py": TEST}, {"look.py": LOOK}, fail_to_pass=["test_it.T.test_it"], grading=grading)
    found = grounds.grade(task, hash_seed=seed)
    assert found.passed, found.details


def test_a_program_apart_is_first_in_its_namespace_and_takes_all_along(grounds: Any) -> None:
    async def play() -> Any:
        async with await grounds.host.start([grounds.host.store.add_files({"a": b""})]) as sandbox:
            script = "echo $$; (sleep 1000 & setsid sleep 1000 &); "
            script += "sh -c 'kill -9 1; kill -STOP 1; kill -TERM 1'; echo alive"
            first = await sandbox.run_apart(["sh", "-c", script])
            left = await sandbox.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
            gone = await sandbox.run_apart(["sh", "-c", "exit 3"], env={"A": "b"})
            missing = await sandbox.run_apart(["no-such-program"])
            late = await sandbox.run_apart(["sleep", "100"], timeout=0.1)
            return first, left, gone, missing, late

    first, left, gone, missing, late = grounds.run(play())
    assert first.stdout == b"1\nalive\n"
    assert b"sleep" not in left.stdout
    assert (gone.code, missing.code, late.timed_out) == (3, 127, True)


def test_a_module_that_was_not_loaded_cannot_be_run(grounds: Any) -> None:
    from etude.sandbox.base import SandboxFailure

    async def play() -> None:
        async with await grounds.host.start([grounds.host.store.add_files({"a": b""})]) as sandbox:
            with pytest.raises(SandboxFailure, match=r"os\.path"):
                await sandbox.run_apart("os.path")

    grounds.run(play())

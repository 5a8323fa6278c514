"""A sandbox that shows little of the host still runs programs, and has none of the host's packages."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

from etude.forge.leaks.minimal_host import minimal_host_folders, missing_by_design

IMPORTS = (
    "import asyncio, ctypes, email, json, sqlite3, ssl, unittest, zoneinfo; print(zoneinfo.ZoneInfo('Asia/Tokyo'))"
)
SEARCH = (
    "import os; print([f for f, d, n in os.walk('/') if f.endswith(('-packages', '_vendor', '_bundled')) and d + n])"
)


def test_programs_run_and_no_package_is_seen(sandboxes: Any) -> None:
    loop, host = sandboxes
    python = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"

    async def work() -> None:
        layer = host.store.add_files({"a.txt": b"here\n"}, shows=minimal_host_folders())
        async with await host.start([layer]) as sandbox:
            imported = await sandbox.run([python, "-I", "-c", IMPORTS])
            assert imported.ok and b"Asia/Tokyo" in imported.stdout, imported.stderr
            found = await sandbox.run([python, "-I", "-c", SEARCH])
            assert found.stdout.strip() == b"[]", found.stdout
            # Or its bytecode would be out of date, and Python would compile it at every start.
            time = await sandbox.run([python, "-I", "-c", "import ast, os; print(os.stat(ast.__file__).st_mtime_ns)"])
            assert int(time.stdout) == Path(ast.__file__).stat().st_mtime_ns
            shell = await sandbox.run(["bash", "-c", "cat a.txt && grep -c here a.txt && git --version"])
            assert shell.ok, shell.stderr

    loop.run_until_complete(work())


def test_helpers_of_the_standard_library_s_tests_are_there_and_the_rest_is_said_to_be_left_out(sandboxes: Any) -> None:
    loop, host = sandboxes
    python = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"

    async def work() -> bytes:
        layer = host.store.add_files({"a.txt": b"here\n"}, shows=minimal_host_folders())
        async with await host.start([layer]) as sandbox:
            helper = await sandbox.run([python, "-I", "-c", "import test.support.os_helper"])
            assert helper.ok, helper.stderr
            return (await sandbox.run([python, "-I", "-c", "import test.test_zipfile"])).stderr

    said = missing_by_design(loop.run_until_complete(work()).decode())
    assert said.startswith("test.test_zipfile is part of Python's standard library, and sandboxes do not show it")
    assert missing_by_design("No module named 'tests.helpers'") == missing_by_design("ok") == ""

"""What of the host a sandbox needs to run programs, and nothing of what has been installed there.

The usual folders of a sandbox hold every package that this machine's interpreters have: an agent that is to write a
part of one of them would only have to look. So a sandbox for a real repository shows the interpreter without its
site-packages and without the wheels that it bundles, and of the system its programs and libraries by name. Knows
this machine's folders, no repository.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path
from typing import Final

_SYSTEM: Final = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),  # links into /usr, or folders of their own
    *("/usr/bin", "/usr/sbin", "/usr/libexec", "/usr/lib32", "/usr/lib64", "/usr/libx32"),
    *("/usr/lib/git-core", "/usr/lib/locale", "/usr/lib/terminfo", "/usr/lib/ssl", "/usr/lib/tmpfiles.d"),
    *("/usr/share/zoneinfo", "/usr/share/terminfo", "/usr/share/git-core", "/usr/share/ca-certificates"),
    *("/usr/share/perl", "/usr/share/perl5", "/usr/share/misc", "/usr/share/mime", "/usr/share/i18n"),
    *("/usr/local/bin", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs", "/etc/mime.types"),
)
# Of the standard library: what holds packages, or nothing that code under test needs.
_LEFT_OUT: Final = frozenset(
    ("site-packages", "dist-packages", "ensurepip", "test", "tests", "idlelib", "turtledemo", "lib2to3", "pydoc_data")
)
# Of `test`, the standard library's own suite, what other projects' tests import. The rest stays out: it holds the tests
# of backports (zipp, importlib_resources) under other names.
_HELPERS: Final = ("test/__init__.py", "test/support")
_MISSING: Final = re.compile(rf"No module named '((?:{'|'.join(sorted(_LEFT_OUT - {'tests'}))})(?:\.\w+)*)'")


def minimal_host_folders() -> tuple[str, ...]:
    """Folders and files to show instead of the whole system and the whole interpreter, as far as they are there."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    libraries = [f"/usr/lib/{multiarch}"] if multiarch else []
    libraries += sorted(str(path) for path in Path("/usr/lib").glob("*.so*"))
    shown = [path for path in (*_SYSTEM, *libraries) if Path(path).exists() and not _is_merged(path)]
    return tuple(dict.fromkeys([*shown, *_interpreter()]))


def missing_by_design(text: str) -> str:
    """Where an output complains about a module that sandboxes leave out of the standard library: who removed it."""
    found = _MISSING.search(text)
    if found is None:
        return ""
    return (
        f"{found[1]} is part of Python's standard library, and sandboxes do not show it: it may hold copies of what "
        "tasks delete. Tests that need it are not run"
    )


def _is_merged(path: str) -> bool:
    """/lib as a folder of its own would bring all of /usr/lib with it where the two are one."""
    return not Path(path).is_symlink() and path == "/lib" and Path("/lib").samefile("/usr/lib")


def _interpreter() -> list[str]:
    """The interpreter that we run on, by the parts of its prefix."""
    prefix = Path(sys.base_prefix)
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}))
    parts = sorted(str(path) for path in library.iterdir() if path.name not in _LEFT_OUT)
    parts += [str(library / name) for name in _HELPERS if (library / name).exists()]
    if str(prefix) == "/usr":
        return parts
    programs = [str(prefix / name) for name in ("bin", "include") if (prefix / name).is_dir()]
    return [*programs, *sorted(str(path) for path in (prefix / "lib").glob("libpython*")), *parts]

"""The Linux system calls that Python does not offer, by number through ctypes. Knows nothing about sandboxes.

Every call raises `OSError` with the call's name in it, so that a refused mount says which one it was.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import Final

# Holding the interpreter's lock during the call makes a raw clone() as safe as os.fork() in one thread.
_libc: Final = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

MACHINE: Final = platform.machine()

_MACHINES: Final = ("x86_64", "aarch64")
# By machine, in that order. Calls of Linux 5.1 and later got the same number everywhere.
_NUMBERS: Final = {
    "clone": (56, 220),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "sethostname": (170, 161),
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
    "unshare": (272, 97),
    "prctl": (157, 167),
    "capset": (126, 91),
    "seccomp": (317, 277),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "close_range": (436, 436),
    "openat2": (437, 437),
    "mount_setattr": (442, 442),
}


CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MNT_DETACH = 0x2

_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 0x1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOVE_MOUNT_T_EMPTY_PATH = 0x40
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
_MOUNT_ATTR_IDMAP = 0x00100000

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_IN_ROOT = 0x10

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAPBSET_DROP = 24
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """One system call by its name."""
    if MACHINE not in _MACHINES:
        # Refused and not guessed: the number of one call is another call on another processor.
        raise OSError(errno.ENOSYS, f"{name}: no number is known for this processor ({MACHINE})")
    number = _NUMBERS[name][_MACHINES.index(MACHINE)]
    # Integers go as 64-bit values: a plain Python int would be cut to a C int.
    wide = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *wide))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def clone(flags: int) -> int:
    """fork(2) into new namespaces: 0 in the child, the child's pid in the parent. Only for one-threaded processes."""
    signal_at_end = 17  # SIGCHLD
    # What os.fork() does around the call as well: the interpreter's own locks must be held by nobody.
    ctypes.pythonapi.PyOS_BeforeFork()
    try:
        pid = call("clone", flags | signal_at_end, 0, 0, 0, 0)
    except OSError:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        raise
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def set_file(path: str, text: str | bytes, mode: int | None = None) -> None:
    """Write a setting of the kernel's or, with a mode, a small new file: three calls where `write_text` makes eight."""
    made = os.O_WRONLY | os.O_CLOEXEC | (0 if mode is None else os.O_CREAT)
    file = os.open(path, made, 0 if mode is None else mode)
    try:
        os.write(file, text if isinstance(text, bytes) else text.encode())
    finally:
        os.close(file)


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    try:
        call("mount", os.fsencode(source), os.fsencode(target), kind.encode(), flags, options.encode() or None)
    except OSError as error:
        raise OSError(error.errno, f"mount {kind or 'bind'} on {target}: {os.strerror(error.errno or 0)}") from None


def unmount(target: str) -> None:
    call("umount2", os.fsencode(target), MNT_DETACH)


def bind(source: int, target: int, attributes: int = 0) -> None:
    """Show the tree behind one descriptor at another, with attributes set on it and on everything below."""
    tree = detached(source, attributes)
    try:
        attach(tree, target)
    finally:
        os.close(tree)


def detached(source: int, attributes: int = 0, owners: int | None = None, *, below: bool = True) -> int:
    """A mount of the tree behind a descriptor that is nowhere yet, with what is mounted `below` or without.

    `owners`: a user namespace whose map says whose the files are there.
    """
    how = _AT_EMPTY_PATH | _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | (_AT_RECURSIVE if below else 0)
    tree = call("open_tree", source, b"", how)
    if attributes or owners is not None:
        mapped = 0 if owners is None else _MOUNT_ATTR_IDMAP
        # Read-only is set before the mount is moved into place: there is no moment in which it is writable.
        wanted = struct.pack("=QQQQ", attributes | mapped, 0, 0, owners or 0)
        try:
            call("mount_setattr", tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, wanted, len(wanted))
        except OSError:
            os.close(tree)
            raise
    return tree


def attach(tree: int, target: int) -> None:
    call("move_mount", tree, b"", target, b"", _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH)


def bind_path(source: str, target: str) -> None:
    """Show one file or folder at the place of another, in one call."""
    mount(source, target, "", MS_BIND)


def new_tmpfs(size: str, attributes: int) -> int:
    """A new file system in memory, as a mount that is nowhere yet; its devices work where the caller is root."""
    set_string, create, close_on_exec = 1, 6, 1
    context = call("fsopen", b"tmpfs", close_on_exec)
    try:
        call("fsconfig", context, set_string, b"size", size.encode(), 0)
        call("fsconfig", context, set_string, b"mode", b"755", 0)
        call("fsconfig", context, create, None, None, 0)
        return call("fsmount", context, close_on_exec, attributes)
    finally:
        os.close(context)


def open_beneath(root: int, path: str, flags: int, mode: int = 0, *, links: bool = True) -> int:
    """open(2) that treats `root` as `/`: no link, absolute or relative, and no magic link of /proc leads out of it."""
    resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | (0 if links else RESOLVE_NO_SYMLINKS)
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve)
    try:
        return call("openat2", root, os.fsencode(path), how, len(how))
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None


def prctl(option: int, argument: int = 0) -> None:
    call("prctl", option, argument, 0, 0, 0)


def bar_capabilities() -> None:
    """Empty the bounding set: no exec from here on can bring a capability back."""
    # The sets are 64 bits wide; this kernel may know fewer. By libc's own function: forty calls, at each start.
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            return  # the first number that this kernel does not know


def drop_capabilities() -> None:
    """Empty every other set of this process."""
    call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    version_3, this_process = 0x20080522, 0
    call("capset", struct.pack("=Ii", version_3, this_process), bytes(24))

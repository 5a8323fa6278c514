"""The filter of system calls that every program in a sandbox runs under.

A list of what is denied, not of what is allowed: compilers, interpreters and servers must work, while the calls
that reach into the kernel's less travelled parts (and past the namespaces) are gone. The filter is a few hundred
instructions of classic BPF, built once by the launcher. Knows nothing about namespaces, limits or capabilities.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import Final

from etude.sandbox.local import kernel

# name: (x86_64, aarch64); None where the processor has no such call.
DENIED: Final[dict[str, tuple[int | None, int | None]]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # mounts and roots
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    # files by handle walk around the root
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    # keys, tracing, programs in the kernel
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "memfd_secret": (447, 447),
    "lookup_dcookie": (212, 18),
    # the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "reboot": (169, 142),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    "nfsservctl": (180, 42),
    "vhangup": (153, 58),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # what is in memory of a file that other sandboxes read too
    "mincore": (27, 232),
    "cachestat": (451, 451),
    # its contexts are the machine's, a fixed number for all users together
    "io_setup": (206, 0),
}
# Advice about what should be in memory. It is not followed, and nobody is told: programs only ever give it.
UNHEARD: Final[dict[str, tuple[int, int]]] = {
    "fadvise64": (221, 223),
    "readahead": (187, 213),
}
# What a program is told is not there: it then takes another way.
_MISSING: Final = ("io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup", "cachestat")
# Memory that no process maps is seen by a cgroup only: without one these two are gone as well.
UNCOUNTED_MEMORY: Final[dict[str, tuple[int | None, int | None]]] = {
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "msgget": (68, 186),
}
# Calls that programs need, where only some arguments are denied.
INSPECTED: Final[dict[str, tuple[int, int]]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "ioctl": (16, 29),
    "personality": (135, 92),
    "prlimit64": (302, 261),
    "preadv2": (327, 286),
    "pwritev2": (328, 287),
    "madvise": (28, 233),
}
_ARCHITECTURE: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# A user namespace gives its maker every capability in it, and with that most of the kernel's attack surface.
_NEW_NAMESPACE = 0x7E020080  # every CLONE_NEW* flag; NEWTIME is 0x80
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERRNO = 0x00050000
_LOAD, _JUMP, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
# AF_VSOCK reaches the machine's hypervisor whatever the network namespace; raw kinds are not for programs.
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_TYPING_INTO_TERMINALS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_PERSONALITIES = (0x0, 0x0040000, 0xFFFFFFFF)  # Linux, without randomised addresses (debuggers), the question
_CACHED_ONLY = 0x08 | 0x80  # RWF_NOWAIT asks whether a page is in memory, RWF_DONTCACHE sends it away
_OUT_OF_MEMORY = (20, 21)  # MADV_COLD, MADV_PAGEOUT
_AT_A_TIME = 3  # rules that are looked at one after the other


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _deny(code: int) -> bytes:
    return _op(_RETURN, _ERRNO | code)


def _on(number: int, body: list[bytes]) -> list[bytes]:
    """`body` runs for this call and must return; others jump over it."""
    return [_op(_EQUAL, number, 0, len(body)), *body]


def _search(rules: list[tuple[int, list[bytes]]]) -> list[bytes]:
    """The body that belongs to the call, found by halves; everything that no rule is for is allowed.

    One after the other would be shorter, but the kernel runs a filter for each of its calls when it is installed, and
    one is installed at every start of a program: that took 0.25 ms.
    """
    if len(rules) <= _AT_A_TIME:
        return [*(op for number, body in rules for op in _on(number, body)), _op(_RETURN, _ALLOW)]
    middle = len(rules) // 2
    low, high = _search(rules[:middle]), _search(rules[middle:])
    return [_op(_AT_LEAST, rules[middle][0], 0, 1), _op(_JUMP, len(low)), *low, *high]


def _argument(index: int) -> bytes:
    return _op(_LOAD, _ARGUMENTS_AT + 8 * index)  # the low half: both processors are little-endian


def _deny_if_any_bit(index: int, bits: int, refusal: int = errno.EPERM) -> list[bytes]:
    return [_argument(index), _op(_ANY_BIT, bits, 0, 1), _deny(refusal), _op(_RETURN, _ALLOW)]


def _jump_past_next(index: int, values: tuple[int, ...]) -> list[bytes]:
    """When the argument is one of the values, the instruction that follows these is jumped over."""
    checks = [_op(_EQUAL, value, len(values) - number, 0) for number, value in enumerate(values)]
    return [_argument(index), *checks]


def _allow_only(index: int, values: tuple[int, ...], refusal: int) -> list[bytes]:
    return [*_jump_past_next(index, values), _deny(refusal), _op(_RETURN, _ALLOW)]


def _deny_values(index: int, values: tuple[int, ...], refusal: int = errno.EPERM) -> list[bytes]:
    return [*_jump_past_next(index, values), _op(_RETURN, _ALLOW), _deny(refusal)]


def _own_limits() -> list[bytes]:
    """Whoever has the same user number may lower another's limits, also those of a process that it may not signal.

    Asking is allowed (no new limits), and so is setting one's own (process 0).
    """
    low, high = _argument(2), _op(_LOAD, _ARGUMENTS_AT + 8 * 2 + 4)
    refused = [low, _op(_EQUAL, 0, 0, 2), high, _op(_EQUAL, 0, 1, 0), _deny(errno.EPERM), _op(_RETURN, _ALLOW)]
    return [_argument(0), _op(_EQUAL, 0, len(refused) - 1, 0), *refused]


def _socket_kinds() -> list[bytes]:
    # Routing answers `getifaddrs`, which servers and test suites call; other netlink protocols are the kernel's
    # settings.
    netlink = [_argument(2), _op(_EQUAL, 0, 0, 1), _op(_RETURN, _ALLOW), _deny(errno.EAFNOSUPPORT)]  # routing only
    return [
        _argument(0),
        _op(_EQUAL, _AF_NETLINK, 0, len(netlink)),
        *netlink,
        *_allow_only(0, (_AF_UNIX, _AF_INET, _AF_INET6), errno.EAFNOSUPPORT),
    ]


def build(*, counted_memory: bool, machine: str = kernel.MACHINE) -> bytes:
    """The filter's instructions for this processor."""
    if machine not in _ARCHITECTURE:
        raise OSError(errno.ENOSYS, f"no system call filter is written for this processor ({machine})")
    column = list(_ARCHITECTURE).index(machine)
    inspected = {name: numbers[column] for name, numbers in INSPECTED.items()}
    program = [
        _op(_LOAD, _ARCHITECTURE_AT),
        _op(_EQUAL, _ARCHITECTURE[machine], 1, 0),
        _op(_RETURN, _KILL),  # calls of another architecture have other numbers
        _op(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        program += [_op(_AT_LEAST, 0x40000000, 0, 1), _deny(errno.ENOSYS)]  # the x32 numbers of the same calls
    cached_only = _deny_if_any_bit(5, _CACHED_ONLY, errno.EOPNOTSUPP)
    bodies = {
        "clone": _deny_if_any_bit(0, _NEW_NAMESPACE),
        # Its flags lie in memory, where a filter cannot look; every libc then falls back to clone.
        "clone3": [_deny(errno.ENOSYS)],
        "unshare": _deny_if_any_bit(0, _NEW_NAMESPACE),
        "socket": _socket_kinds(),
        "socketpair": _allow_only(0, (_AF_UNIX,), errno.EAFNOSUPPORT),
        "ioctl": _deny_values(1, _TYPING_INTO_TERMINALS),
        "personality": _allow_only(0, _PERSONALITIES, errno.EPERM),
        "prlimit64": _own_limits(),
        "preadv2": cached_only,
        "pwritev2": cached_only,
        "madvise": _deny_values(2, _OUT_OF_MEMORY, errno.EINVAL),
    }
    rules = {inspected[name]: body for name, body in bodies.items()}
    for both in UNHEARD.values():
        rules[both[column]] = [_op(_RETURN, _ERRNO)]  # error 0: it returns 0
    for name, numbers in (DENIED if counted_memory else DENIED | UNCOUNTED_MEMORY).items():
        number = numbers[column]
        if number is not None:
            # "Not there" lets programs fall back (io_uring, memfd); a refusal tells the truth for the others.
            missing = name in _MISSING or name in UNCOUNTED_MEMORY
            rules[number] = [_deny(errno.ENOSYS if missing else errno.EPERM)]
    return b"".join(program + _search(sorted(rules.items())))


class Filter:
    """A built filter in memory that stays where it is, so that installing it is one call."""

    def __init__(self, instructions: bytes) -> None:
        # ctypes keeps the buffer where it is, and the packed pointer below stays valid as long as this object lives.
        self._instructions = ctypes.create_string_buffer(instructions, len(instructions))
        pointer = ctypes.addressof(self._instructions)
        self._program = struct.pack("@HP", len(instructions) // 8, pointer)

    def install(self) -> None:
        """For this process and all that come from it, for good. Needs no-new-privs to be set."""
        set_filter = 1
        kernel.call("seccomp", set_filter, 0, self._program)

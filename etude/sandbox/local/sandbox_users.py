"""Which outside user each sandbox of a launcher runs as: a number of its own where the machine allows it.

The kernel counts pipes, inotify instances, queued signals and more by user, so that sandboxes of one user see what the
others take. With numbers of their own they do not. Layers in the store belong to one number, and are shown to each
sandbox as its own by a mount that maps owners. Root only; an ordinary user's sandboxes all run as that user.
"""

from __future__ import annotations

import heapq
import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from etude.sandbox.identity import Identity, outside_identity, sandbox_identities, user_map
from etude.sandbox.local import kernel


@dataclass(frozen=True)
class SandboxUser:
    """The user of one sandbox, and how the store's files are shown to it."""

    identity: Identity
    place: int = -1  # among the numbers that are handed out
    owners: int | None = None  # user namespace for mounts: the store's owner is this user; None: it is already

    def clone(self, flags: int) -> int:
        """A process in new namespaces that count as this user's: what is made in them is not counted as root's."""
        if self.identity.is_own:
            return kernel.clone(flags)
        os.seteuid(self.identity.uid)
        kernel.call("setfsuid", 0)  # the child still has to open what only root can
        try:
            pid = kernel.clone(flags)
        except OSError:
            os.seteuid(0)
            return kernel.clone(flags)  # a machine on which only root may make user namespaces
        if pid:
            os.seteuid(0)
        return pid

    def map(self, pid: int) -> None:
        """Give the user namespace of a new process its users."""
        if self.identity.is_own:
            kernel.set_file(f"/proc/{pid}/setgroups", "deny")  # or the kernel lets no ordinary user map a group
        kernel.set_file(f"/proc/{pid}/gid_map", user_map(self.identity, self.identity.gid))
        kernel.set_file(f"/proc/{pid}/uid_map", user_map(self.identity, self.identity.uid))


class SandboxUsers:
    """Hands out users; the lowest free number first, as its namespace for mounts is kept."""

    def __init__(self, store: str) -> None:
        self._owner = outside_identity()
        self._identities = sandbox_identities()
        self._owners: dict[int, int] = {}  # by place: made once, in a millisecond
        self._free: list[int] = []
        self._places = 0
        self.one_each = self._try(store)

    def take(self) -> SandboxUser:
        if self.one_each:
            place = heapq.heappop(self._free) if self._free else self._places
            if place < len(self._identities):
                self._places = max(self._places, place + 1)
                if place not in self._owners:
                    self._owners[place] = _mapping(self._owner, self._identities[place])
                return SandboxUser(self._identities[place], place, self._owners[place])
        return SandboxUser(self._owner)

    def give_back(self, user: SandboxUser) -> None:
        """Its sandbox is gone, and with it everything that the kernel counted."""
        if user.place >= 0:
            heapq.heappush(self._free, user.place)

    def _try(self, store: str) -> bool:
        """Whether the store's file system can show files as another user's."""
        if not self._identities:
            return False
        try:
            folder = os.open(store, os.O_PATH | os.O_CLOEXEC)
            try:
                self._owners[0] = _mapping(self._owner, self._identities[0])
                os.close(kernel.detached(folder, 0, self._owners[0]))
            finally:
                os.close(folder)
        except OSError:
            return False
        return True


def _mapping(owner: Identity, identity: Identity) -> int:
    """A user namespace in which the store's owner is this user. It lives as long as the descriptor."""
    pid = kernel.clone(kernel.CLONE_NEWUSER)
    if pid == 0:
        while True:
            signal.pause()
    try:
        for name, here, there in (("gid", owner.gid, identity.gid), ("uid", owner.uid, identity.uid)):
            kernel.set_file(f"/proc/{pid}/{name}_map", f"{here} {there} 1")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

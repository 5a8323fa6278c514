"""The one small process that makes sandboxes on request. Started fresh by the orchestrator, one thread, no torch.

It forks a child into new namespaces, maps its user, puts it into a cgroup where there is one, and hands it the
socket over which the orchestrator then talks to it directly. It reaps sandboxes that ended, removes their
cgroups, and says so; it runs CRIU in them to save programs or to restore them (`criu.py`). When the orchestrator is
gone, however it went, it ends every sandbox and itself.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from etude.sandbox.base import SandboxLimits
from etude.sandbox.identity import outside_identity
from etude.sandbox.local import cgroups, criu, host_folders, init, kernel, rootfs, seccomp, wire
from etude.sandbox.local.host_folders import HostFolders
from etude.sandbox.local.machine_files import MachineFiles, device_tree, devices_work
from etude.sandbox.local.program_start import Confinement
from etude.sandbox.local.rootfs import RootFilesystem, RootPlan
from etude.sandbox.local.sandbox_users import SandboxUser, SandboxUsers

_NAMESPACES: Final = (
    kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
)


@dataclass(frozen=True)
class Child:
    """A sandbox's init, seen from outside."""

    number: int
    pid: int
    handle: int  # pidfd: readable when it is dead
    group: cgroups.ControlGroup | None
    user: SandboxUser


class Launcher:
    def __init__(self, connection: socket.socket, orchestrator: int, preloaded: init.Preloaded, store: str) -> None:
        self._connection = connection
        self._preloaded = preloaded
        self._reader = wire.Reader(connection)
        # A pidfd, as a pid may be reused by another process once the orchestrator is dead.
        self._orchestrator = os.pidfd_open(orchestrator)
        self._groups = cgroups.find()
        self._users = SandboxUsers(store)
        self._machine = MachineFiles()
        self._own_devices = os.geteuid() == 0 and devices_work()
        with open("/proc/self/mountinfo") as file:  # noqa: PTH123 - /proc
            self._mounts = host_folders.mount_points(file.read())
        self._calls = seccomp.Filter(seccomp.build(counted_memory=self._groups is not None))
        self._children: dict[int, Child] = {}  # by handle
        # The way back: `setns` into a sandbox's pid namespace changes where our next children are born.
        self._numbering = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._criu_processes: dict[int, int] = {}  # handle of a process that runs CRIU in a sandbox -> its pid
        self._reports: dict[int, int] = {}  # where such a process reports -> the request that it is for
        self._poll = select.poll()
        for descriptor in (connection.fileno(), self._orchestrator):
            self._poll.register(descriptor, select.POLLIN)

    def serve(self) -> None:
        memory = "watch" if self._groups is None else f"cgroup{self._groups.version}"
        trusted = "own user" if os.geteuid() == 0 and not outside_identity().is_own else "filter"
        users = "one each" if self._users.one_each else "shared"
        wire.send(self._connection, {"ready": True, "memory": memory, "users": users, "trusted": trusted})
        gc.collect()
        gc.freeze()  # children share these pages for longer
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            for handle in ready & self._children.keys():
                self._reap(self._children[handle])
            for handle in ready & self._criu_processes.keys():
                self._reap_criu(handle)
            for report in ready & self._reports.keys():
                self._pass_report(report)
            # A dead orchestrator may leave its socket open in a child of its own: the pidfd sees it all the same.
            if self._orchestrator in ready:
                return
            if self._connection.fileno() in ready:
                if not self._reader.fill():
                    return
                while (message := self._reader.take()) is not None:
                    self._answer(*message)

    def end(self) -> None:
        """Kill every sandbox and leave nothing."""
        for child in self._children.values():
            self._kill(child)
        deadline = time.monotonic() + 5.0
        while self._children and time.monotonic() < deadline:
            ready = {descriptor for descriptor, _ in self._poll.poll(100)}
            for handle in ready & self._criu_processes.keys():
                self._reap_criu(handle)  # or the kernel does not let their sandbox end
            for handle in ready & self._children.keys():
                self._reap(self._children[handle], report=False)
        if self._groups is not None:
            self._groups.remove()

    def _answer(self, message: wire.Message, descriptors: tuple[int, ...]) -> None:
        if message["do"] == "start":
            self._start(message, descriptors)
        elif message["do"] == "kill":
            for child in [each for each in self._children.values() if each.number == message["id"]]:
                self._kill(child)
        elif message["do"] in ("dump", "restore"):
            try:
                self._run_criu(message, descriptors)
            except OSError as error:
                wire.send(self._connection, {"id": message["id"], "error": str(error)})
        wire.close_all(descriptors)

    def _start(self, message: wire.Message, descriptors: tuple[int, ...]) -> None:
        """What goes wrong is reported at the sandbox's own socket, where somebody waits."""
        group: cgroups.ControlGroup | None = None
        pid = 0
        trees: list[int] = []
        devices: int | None = None
        shows = HostFolders([])
        user = self._users.take()
        try:
            limits = SandboxLimits(**message["limits"])
            if user.owners is not None:
                # Only who has rights over the store's file system may map owners: here, and not in the sandbox.
                trees += [rootfs.layer_tree(path, user.owners) for path in message["layers"]]
            if self._own_devices:
                devices = device_tree()
            shows = host_folders.prepare(message["shows"], self._mounts, outside=os.geteuid() == 0)
            if self._groups is not None:
                # Its files lie in a tmpfs, which the kernel counts as memory of whoever wrote them.
                group = self._groups.make(limits.memory + limits.disk, limits.processes, limits.cpus)
            # `network=True` shares the host's network namespace, loopback included.
            own_network = 0 if message["network"] else kernel.CLONE_NEWNET
            wait, release = os.pipe2(os.O_CLOEXEC)
            try:
                # All namespaces in one clone: the user namespace is made first and owns the others.
                pid = user.clone(_NAMESPACES | own_network)
                if pid == 0:
                    os.close(release)
                    confinement = Confinement(self._calls, limits, counted_memory=group is not None)
                    network, workdir = message["network"], message["workdir"]
                    plan = RootPlan(
                        message["layers"],
                        shows,
                        limits.disk,
                        network,
                        workdir,
                        self._machine,
                        trees,
                        devices,
                        message["etc"],
                    )
                    _become_init(plan, descriptors, wait, confinement, group, self._preloaded)
                # The child waits for both: before the maps are written it is nobody, and its files would be nobody's.
                user.map(pid)
                if group is not None:
                    group.add(pid)
                os.write(release, b"x")
            finally:
                os.close(wait)
                os.close(release)
            handle = os.pidfd_open(pid)
        except OSError as error:
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            if group is not None:
                group.remove()
            self._users.give_back(user)
            # The host waits at the sandbox's socket, not at ours.
            with socket.socket(fileno=os.dup(descriptors[0])) as waiting, suppress(OSError):
                wire.send(waiting, {"failed": str(error)})
            wire.send(self._connection, {"ended": message["id"]})
            return
        finally:
            wire.close_all((*trees, *(() if devices is None else (devices,))))
            shows.close()
        self._children[handle] = Child(message["id"], pid, handle, group, user)
        self._poll.register(handle, select.POLLIN)

    def _run_criu(self, message: wire.Message, descriptors: tuple[int, ...]) -> None:
        """A fork of ours goes into a sandbox to save a program of it with its memory, or to restore one."""
        child = next((each for each in self._children.values() if each.number == message["sandbox"]), None)
        if child is None:
            raise OSError(errno.ESRCH, "the sandbox has ended")
        target = criu.TargetSandbox(child.handle, child.group, child.user.identity)
        installed = criu.Criu(message["program"], message["loader"], tuple(message["libraries"]))
        reader, report = os.pipe2(os.O_CLOEXEC)
        kernel.call("setns", child.handle, kernel.CLONE_NEWPID)  # for what we fork now
        try:
            if message["do"] == "restore":
                _skip_numbers(message["highest"])
            pid = os.fork()
            if pid == 0:
                # A fork of the launcher holds the sockets of all sandboxes; none of them may get into CRIU.
                _close_all_but(child.handle, report, *descriptors)
                if message["do"] == "dump":
                    criu.dump(target, installed, descriptors[0], message["pid"], report)
                images, *streams, status = descriptors
                program = criu.SavedProgram(message["pid"], tuple(message["pipes"]), tuple(streams), status)
                criu.restore(target, installed, images, program, report)
        except BaseException:
            os.close(reader)
            raise
        finally:
            # Also after a failure: the launcher's next sandbox would otherwise be born inside this one.
            kernel.call("setns", self._numbering, kernel.CLONE_NEWPID)
            os.close(report)
        handle = os.pidfd_open(pid)
        self._criu_processes[handle], self._reports[reader] = pid, message["id"]
        self._poll.register(handle, select.POLLIN)
        self._poll.register(reader, select.POLLIN)

    def _pass_report(self, reader: int) -> None:
        report = os.read(reader, 1 << 16)
        answer = json.loads(report) if report else {"error": "the process that was sent into the sandbox died"}
        self._poll.unregister(reader)
        os.close(reader)
        wire.send(self._connection, {**answer, "id": self._reports.pop(reader)})

    def _reap_criu(self, handle: int) -> None:
        os.waitpid(self._criu_processes.pop(handle), 0)
        self._poll.unregister(handle)
        os.close(handle)

    def _kill(self, child: Child) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(child.handle, signal.SIGKILL)

    def _reap(self, child: Child, report: bool = True) -> None:
        seconds = _processor_seconds(child.pid)  # it is dead, and says so until it is waited for
        # The kernel reports an init dead only after every process of its namespace is.
        os.waitpid(child.pid, 0)
        del self._children[child.handle]
        self._poll.unregister(child.handle)
        os.close(child.handle)
        if child.group is not None:
            child.group.remove()
        self._users.give_back(child.user)
        if report:
            wire.send(self._connection, {"ended": child.number, "seconds": seconds})


def _processor_seconds(pid: int) -> float:
    """Of one process without its children."""
    return time.clock_gettime(~pid << 3 | 2)  # what clock_getcpuclockid(3) makes of a pid


def _become_init(
    plan: RootPlan,
    descriptors: tuple[int, ...],
    wait: int,
    confinement: Confinement,
    group: cgroups.ControlGroup | None,
    preloaded: init.Preloaded,
) -> NoReturn:
    """In the new namespaces: become the sandbox's init."""
    code = 1
    connection = socket.socket(fileno=descriptors[0])
    changes, packed = descriptors[1:] if len(descriptors) > 1 else (None, None)
    try:
        # Opened now: after the change of root no path leads to the host's control groups.
        counter = os.open(group.oom_file, os.O_RDONLY | os.O_CLOEXEC) if group is not None else None
        kept = (each for each in (changes, packed, counter, plan.devices) if each is not None)
        _close_all_but(connection.fileno(), wait, *kept, *plan.trees, *plan.shows.trees.values())
        if not os.read(wait, 1):  # the launcher died or gave up
            os._exit(1)
        os.close(wait)
        # Only now: in the group that it was put into, which is then the root of all that it sees of them.
        kernel.call("unshare", kernel.CLONE_NEWCGROUP)
        files = RootFilesystem(plan, changes)
        # Only now: a change of user, which the lines before may need, clears it.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, int(signal.SIGKILL))
        init.settle(own_network=not plan.network)
        # A fork packs while these mounts are made; without the byte the packing failed.
        if packed is not None and not os.read(packed, 1):
            raise OSError(errno.ECANCELED, "the changes to start from did not come")
        files.mount()
        init.serve(connection, files, confinement, counter, preloaded)
        code = 0
    except BrokenPipeError:
        pass  # the orchestrator went away
    except BaseException as error:
        # An OSError is what this machine refused. Anything else is our own mistake and leaves a traceback in the log.
        if not isinstance(error, OSError):
            traceback.print_exc()
        reason = str(error.strerror or error) if isinstance(error, OSError) else repr(error)
        with suppress(OSError):
            wire.send(connection, {"failed": reason})
    finally:
        sys.stderr.flush()
        # Never back into the launcher's loop, which is also in this process's stack.
        os._exit(code)


def _skip_numbers(highest: int) -> None:
    pid = os.fork()
    if pid == 0:
        criu.skip_numbers(highest)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise OSError(errno.EPERM, "process numbers cannot be chosen on this machine")


def _close_all_but(*keep: int) -> None:
    at = 3
    for descriptor in sorted(keep):
        if descriptor > at:
            os.closerange(at, descriptor)
        at = max(at, descriptor + 1)
    kernel.call("close_range", at, 0xFFFFFFFF, 0)


def main(connection: int, orchestrator: int, preload: tuple[str, ...] = (), store: str = "/") -> None:
    """`preload` names modules of ours whose `main` a sandbox can run as a program (`run_apart`).

    What one has as `prepare` is done here, once: it may leave this process without the modules that are loaded by then.
    """
    os.umask(0o022)  # modes inside do not depend on who asks
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the orchestrator decides when we end
    # The orchestrator died before we started, and no pidfd of it can be trusted.
    if os.getppid() != orchestrator:
        return
    with socket.socket(fileno=connection) as control:
        modules = {name: importlib.import_module(name) for name in preload}
        launcher = Launcher(control, orchestrator, {name: each.main for name, each in modules.items()}, store)
        for prepare in [each.prepare for each in modules.values() if hasattr(each, "prepare")]:
            prepare()
        try:
            launcher.serve()
        except BrokenPipeError:
            pass
        finally:
            launcher.end()

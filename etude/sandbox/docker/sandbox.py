"""One container as a sandbox: the verbs of the protocol over an engine's command-line program.

Programs, reads and writes are `exec`s, and see exactly what any program of the container sees. What differs from the
layers is found by comparing the engine's copies of this container and of one that nothing ever ran in. After each run
the container's control group is looked at from the host: what is left in it, and belongs to no other program, is
killed; what cannot be killed that way ends with a restart of the container, which keeps the files.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from etude.sandbox.backend import MAX_READ, BackendSandbox, Command, SandboxRecipe, copy_changes
from etude.sandbox.base import CommandResult, FailureCause, SandboxFailure
from etude.sandbox.docker.engine import COPY_SECONDS
from etude.sandbox.docker.files import (
    ContainerPath,
    changed_roots,
    differences,
    extract,
    index,
    write_files,
    write_tree,
)
from etude.sandbox.docker.process import START_SECONDS, DockerProcess
from etude.sandbox.store.copied_tree import chosen
from etude.sandbox.store.overlay_changes import Row, opened
from etude.sandbox.store.packed_changes import pack, replaced_paths, unpack

if TYPE_CHECKING:
    from etude.sandbox.docker.host import DockerHost

_FILE_SECONDS: Final = 60.0
_ROUNDS: Final = 5  # of killing what is left, before the whole container is restarted
_CHUNK: Final = 400  # paths in one command
_KEEPER: Final = ("sleep", "2147483647")  # what process 1 of a container waits for

# Exit codes are those of `errno`: no such file 2, no right 13, a folder 21, no regular file 22, too large 27.
_READ_SCRIPT: Final = """
[ ! -d "$1" ] || exit 21
[ -e "$1" ] || exit 2
[ -f "$1" ] || exit 22
[ -r "$1" ] || exit 13
if [ -n "$3" ]; then tail -c "+$2" "$1" | head -c "$3"; exit 0; fi
size=$(wc -c < "$1") && [ "$((size - $2 + 1))" -le "$4" ] || exit 27
if [ "$2" = 1 ]; then exec cat "$1"; fi
exec tail -c "+$2" "$1"
"""
_WRITE_SCRIPT: Final = """
[ ! -d "$1" ] || exit 21
[ ! -e "$1" ] || [ -f "$1" ] || exit 22
folder=${1%/*}
[ -z "$folder" ] || mkdir -p "$folder" || exit 20
cat > "$1" || exit 5
[ -z "$2" ] || chmod "$2" "$1"
"""
_AWAY_SCRIPT: Final = 'for path; do rm -rf "$path" || exit 5; done'
_FOLDER_SCRIPT: Final = 'for path; do if [ -L "$path" ] || [ ! -d "$path" ]; then rm -f "$path" || exit 5; fi; done'
_ERRORS: Final = (
    ("Permission denied", errno.EACCES),
    ("Not a directory", errno.ENOTDIR),
    ("No space", errno.ENOSPC),
)


@dataclass(frozen=True)
class ContainerPlan:
    """What a container of some recipe is made of: the image, the options of `create`, the host's folders in it."""

    image: str
    options: tuple[str, ...]
    shows: tuple[str, ...]  # mounted read-only


class DockerSandbox(BackendSandbox):
    """One container; made by `DockerHost.start`."""

    _host: DockerHost

    def __init__(self, host: DockerHost, recipe: SandboxRecipe, plan: ContainerPlan) -> None:
        super().__init__(host, recipe)
        self._plan = plan
        self._stack = ExitStack()
        self._scratch = self._stack.enter_context(host.store.scratch())
        self._changes: Path | None = None
        self._container = ""
        self._group: Path | None = None
        self._programs: set[DockerProcess] = set()
        self._turn = asyncio.Lock()  # held while a program starts and while leftovers are ended
        self._closed = False
        self._copies = 0

    async def run_command(self, command: Command, stdin: bytes) -> CommandResult:
        killed = self._killed_for_memory()
        # The counter belongs to the container, so it is compared before and after.
        result = await super().run_command(command, stdin)
        return replace(result, oom=True) if self._killed_for_memory() > killed else result

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        whole = self._absolute(path)
        arguments = [whole, str(offset + 1), "" if limit is None else str(limit), str(MAX_READ)]
        most = (MAX_READ if limit is None else limit) + 2
        return (await self._file_command(_READ_SCRIPT, arguments, path, most=2 * most)).stdout

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        whole = self._absolute(path)
        permissions = "" if mode is None else f"{mode & 0o777:o}"
        await self._file_command(_WRITE_SCRIPT, [whole, permissions], path, data)

    async def put(self, files: Mapping[str, tuple[bytes, int] | None], folders: Sequence[str] = ()) -> None:
        """Many files at once by absolute path: bytes and mode, or None for one that goes; `folders` are made too."""
        away = [path for path, data in files.items() if data is None]
        await self._each_path(_AWAY_SCRIPT, away)
        with self._host.store.scratch() as scratch:
            stream = scratch / "files.tar"
            given = {path: data for path, data in files.items() if data is not None}
            await asyncio.to_thread(write_files, given, folders, stream, await self._owner())
            await self._copy_in(stream)

    async def _changes_below(self, folder: str) -> list[Row]:
        with self._host.store.scratch() as scratch:
            rows, _ = await self._differences(folder, scratch)
        return rows

    async def reset(self) -> None:
        if self._closed:
            raise SandboxFailure("closed", "the sandbox is closed")
        # No program may start in a container that is being removed.
        async with self._turn:
            await self._remove()
        await self._create()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._host.forget(self)
            try:
                await self._remove()
            finally:
                await asyncio.to_thread(self._stack.close)

    async def open(self, changes: Path | None) -> None:
        if changes is not None:
            self._changes = copy_changes(changes, self._scratch)
        await self._create()

    async def _create(self) -> None:
        """Make the container and start it; nothing is in it yet but what stands in for init."""
        engine, plan = self._host.engine, self._plan
        # A shell that waits reaps orphans too; as process 1 it cannot be signalled from inside, and when somebody
        # ends what it waits for, it starts another.
        wait = ["-c", f"while :; do {' '.join(_KEEPER)}; done"]
        async with self._turn:
            self._container = await engine.output("create", *plan.options, "--entrypoint=/bin/sh", plan.image, *wait)
            await self._start()
        if self._changes is not None:
            await self._apply(self._changes)

    async def _start(self) -> None:
        engine = self._host.engine
        await engine.output("start", self._container)
        state = await engine.output("inspect", "--format", "{{.State.Running}} {{.State.Pid}}", self._container)
        running, _, pid = state.partition(" ")
        if running != "true":
            text = "its container ended at once: an image needs a shell at /bin/sh and the program sleep"
            raise SandboxFailure("start", text)
        self._group = _control_group(int(pid))
        if self._group is None:
            text = f"the processes of {engine.kind}'s containers cannot be seen from here; it must run on this machine"
            raise SandboxFailure("start", text)

    async def _remove(self) -> None:
        for process in list(self._programs):
            process.give_up()
        self._programs.clear()
        if self._container:
            container, self._container, self._group = self._container, "", None
            await self._host.engine.remove(container)

    async def _launch(self, command: Command) -> DockerProcess:
        variables = [f"--env={name}={value}" for name, value in command.env.items()]
        options = [*self._host.engine.command, "exec", *(["--interactive"] if command.stdin else []), *variables]
        given = (command.cwd, command.argv, command.max_output)
        async with self._turn:
            # Twice: the first try may meet a container whose init was just killed for its memory.
            for last in (False, True):
                if self._closed or not self._container:
                    raise SandboxFailure("closed", "the sandbox is closed, or being reset")
                process = DockerProcess(options, self._container, *given, self._ending, stdin=command.stdin)
                self._programs.add(process)
                try:
                    await asyncio.wait({process.started}, timeout=START_SECONDS)
                except asyncio.CancelledError:
                    process.abandon()
                    raise
                if process.started.done() and process.started.result():
                    return process
                self._programs.discard(process)
                words = process.last_error_text()
                process.give_up()
                if last or not process.started.done():
                    break
                await self._mend()  # a container that was just ended for its memory, say, takes a second try
        cause: FailureCause = "died" if process.started.done() else "deadline"
        raise SandboxFailure(cause, f"no program could be started: {words}")

    def _ending(self, process: DockerProcess) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._end_leftovers(process))

    async def _end_leftovers(self, ended: DockerProcess) -> None:
        """Kill everything in the container that belongs to no live program."""
        async with self._turn:
            self._programs.discard(ended)
            if not self._container:
                return
            for _ in range(_ROUNDS):
                left = self._left()
                if not left:
                    break
                # With -1 one call kills everything that no live program needs, also what forks meanwhile.
                numbers = ["-1"] if not self._programs else [str(pid) for pid in sorted(left)]
                kill = ["/bin/sh", "-c", 'kill -9 "$@"', "sh", *numbers]
                await self._host.engine.call(["exec", self._container, *kill])
            else:
                await self._restart()
            if not self._members():
                await self._mend()

    async def _restart(self) -> None:
        """End every process of the container at once, and keep its files."""
        for process in list(self._programs):
            process.give_up()
        self._programs.clear()
        await self._host.engine.call(["kill", self._container])
        await self._start()

    async def _mend(self) -> None:
        """A container whose init was ended, by a lack of memory or a trick, is started again with its files."""
        if self._container and not self._members():
            with suppress(SandboxFailure):
                await self._start()

    def _members(self) -> list[int]:
        """Processes of the container, as the host numbers them."""
        try:
            return [int(line) for line in (self._group_file("cgroup.procs")).read_text().split()]
        except OSError:
            return []

    def _left(self) -> set[int]:
        """What runs beside init and the live programs, as the container numbers it."""
        facts = [found for pid in self._members() if (found := _process_facts(pid)) is not None]
        inside = {host: own for host, own, _, _ in facts}
        # The container's own numbers: `kill` runs inside, where the host's mean nothing.
        above = {own: inside.get(parent, 0) for _, own, parent, _ in facts}
        # There is always one; whoever looks like it makes two.
        keeper = next((own for host, own, _, _ in facts if above[own] == 1 and _is_keeper(host)), 0)
        live = {keeper, *(process.pid for process in self._programs)}
        # An orphan has nobody above it, but it is still in the session that a live program leads: nobody joins another.
        above |= {own: session for _, own, _, session in facts if session in live and own != session}

        def belongs(pid: int) -> bool:
            seen = set()
            while pid and pid not in live and pid in above and pid not in seen:
                seen.add(pid)
                pid = above[pid]
            return pid in live and pid != 0

        return {pid for pid in above if pid != 1 and not belongs(pid)}

    def _killed_for_memory(self) -> int:
        names = ("memory.events", "memory.oom_control")
        for name in names:
            with suppress(OSError):
                found = re.search(r"^oom_kill (\d+)$", self._group_file(name).read_text(), re.MULTILINE)
                if found is not None:
                    return int(found[1])
        return 0

    def _group_file(self, name: str) -> Path:
        if self._group is None:
            raise FileNotFoundError(name)
        return self._group / name

    async def _file_command(
        self, script: str, arguments: Sequence[str], path: str, stdin: bytes = b"", most: int = 1 << 16
    ) -> CommandResult:
        """A fixed script with the paths as its arguments; what a file did wrong comes back as its exit code."""
        argv = ["/bin/sh", "-c", script, "sh", *arguments]
        result = await self.run(argv, cwd="/", stdin=stdin, timeout=_FILE_SECONDS, max_output=most)
        if result.timed_out:
            raise OSError(errno.ETIMEDOUT, f"not done within {_FILE_SECONDS:g} s", path)
        if result.code != 0:
            lines = result.stderr.decode(errors="replace").strip().splitlines()
            known = next((number for text, number in _ERRORS for line in lines if text in line), result.code)
            number = known if known in errno.errorcode else errno.EIO
            raise OSError(number, os.strerror(number), path)
        return result

    async def _differences(self, folder: str, scratch: Path) -> tuple[list[Row], list[tuple[str, Path]]]:
        """What differs below a folder, and the engine's copies that say so."""
        if self._closed:
            raise SandboxFailure("closed", "the sandbox is closed")
        roots = [folder] if folder else await self._changed_roots()
        skip = self._plan.shows
        rows: list[Row] = []
        copies: list[tuple[str, Path]] = []
        for root in roots:
            self._copies += 1
            copy = scratch / f"{self._copies}.tar"
            if await self._copy_out(self._container, root, copy):
                copies.append((root, copy))
                now = await asyncio.to_thread(index, copy, root)
            else:
                now = {}
            rows += differences(now, await self._base(root, scratch), skip)
        return sorted(rows), copies

    async def _changed_roots(self) -> list[str]:
        """Where to look for changes: where the engine says, or everywhere."""
        # The engine's list is fast but not exact, so it only says where to compare.
        result = await self._host.engine.call(["diff", self._container])
        listing = result.out.decode("utf-8", "surrogateescape")
        if result.code != 0:  # podman 4 gives up when a folder took a file's place
            listed = await self._host.engine.output("exec", self._container, "ls", "-A", "/")
            listing = "".join(f"C /{name}\n" for name in listed.splitlines())
        return changed_roots(listing, self._plan.shows)

    async def _base(self, root: str, scratch: Path) -> dict[str, ContainerPath]:
        """The same folder where nothing ever ran; looked at once for all sandboxes of these layers."""
        pristine = await self._host.pristine(self._plan.image)
        if root not in pristine.folders:
            copy = scratch / "base.tar"
            there = await self._copy_out(pristine.container, root, copy)
            pristine.folders[root] = await asyncio.to_thread(index, copy, root) if there else {}
        return pristine.folders[root]

    async def _copy_out(self, container: str, folder: str, target: Path) -> bool:
        """Whether the folder was there."""
        result = await self._host.engine.call(["cp", f"{container}:{folder}", "-"], out=target, seconds=COPY_SECONDS)
        if result.code == 0:
            return True
        if re.search(r"no such file|could not be found|could not find", result.error, re.IGNORECASE):
            return False
        raise SandboxFailure("died", f"{self._host.engine.kind} cp failed: {result.reason}")

    async def _pack(self, out: int) -> None:
        """All changes in one file, as the store keeps them; programs are stopped meanwhile."""
        engine = self._host.engine
        running = bool(self._programs)
        if running:
            # Paused, no program changes a file while the engine copies it.
            await engine.output("pause", self._container)
        try:
            with self._host.store.scratch() as scratch:
                rows, copies = await self._differences("", scratch)
                tree = scratch / "tree"
                tree.mkdir()
                await asyncio.to_thread(extract, copies, rows, tree)
                with opened(str(tree)) as root:
                    await asyncio.to_thread(pack, root, out, chosen(rows))
        finally:
            if running:
                await engine.output("unpause", self._container)

    async def _apply(self, changes: Path) -> None:
        """Lay packed changes over the container's files."""
        source = os.open(changes, os.O_RDONLY | os.O_CLOEXEC)
        try:
            away, folders = replaced_paths(source)
            # Away first: a copy into a container cannot put a folder where a file is, or the other way round.
            await self._each_path(_AWAY_SCRIPT, away)
            await self._each_path(_FOLDER_SCRIPT, folders)
            with self._host.store.scratch() as scratch:
                tree, stream = scratch / "tree", scratch / "changes.tar"
                tree.mkdir()
                with opened(str(tree)) as root:
                    await asyncio.to_thread(unpack, source, root, apply=True)
                await asyncio.to_thread(write_tree, tree, stream, await self._owner())
                await self._copy_in(stream)
        finally:
            os.close(source)

    async def _each_path(self, script: str, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), _CHUNK):
            await self._file_command(script, paths[start : start + _CHUNK], "/")

    async def _owner(self) -> tuple[int, int]:
        """The user and group that programs run as, as numbers."""
        # Asked inside: a Dockerfile may name its user by name.
        answer = await self._file_command("id -u; id -g", [], "/")
        user, group = (int(number) for number in answer.stdout.split())
        return user, group

    async def _copy_in(self, stream: Path) -> None:
        # Each keeps the owners that the stream names, by opposite words.
        keep = "--archive" if self._host.engine.kind == "docker" else "--archive=false"
        place = f"{self._container}:/"
        await self._host.engine.output("cp", keep, "-", place, stdin=stream, seconds=COPY_SECONDS)


def _control_group(pid: int) -> Path | None:
    """Where the kernel counts a container's memory and processes; None when it is not on this machine."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # In version 1 each controller has its own tree, in version 2 the line with no controller is the one.
        roots = ["/sys/fs/cgroup/memory"] if controllers == "memory" else [] if controllers else ["/sys/fs/cgroup"]
        for root in roots:
            group = Path(root + path)
            if (group / "cgroup.procs").exists() and (group / "memory.stat").exists():
                return group
    return None


def _is_keeper(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == "".join(f"{part}\0" for part in _KEEPER).encode()
    except OSError:
        return False


def _process_facts(pid: int) -> tuple[int, int, int, int] | None:
    """A process's number on the host and in its container, its parent's on the host, its session's in the container.

    None when it is dead.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return None
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    # A zombie holds nothing, and cannot be killed again.
    if facts["State"].split()[0] in "ZX":
        return None
    own, session = (int(facts[name].split()[-1]) for name in ("NSpid", "NSsid"))
    return pid, own, int(facts["PPid"]), session

"""A supervisor on a Ray node: starts one program as a child process, renews its lease, and says how it ended.

A detached actor, which Ray starts again on another node when its own is lost. It then has no child: the driver starts
one there, as a new incarnation. The right to a name is a line in a file, its claim, which the driver writes before it
starts the next one. A supervisor that finds another claim than its own ends its child; one that cannot read the claim
does not renew the lease, and the child ends by itself. Only text goes through Ray; nothing of a run's data.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from pathlib import Path

from etude.core.child_process import Child, start
from etude.core.errors import EtudeError
from etude.core.tcp_address import Announced

RENEW = 1.0  # seconds between two renewals of a lease
BOOT = Path("/proc/sys/kernel/random/boot_id")  # one for all processes of a machine that share its memory


def machine() -> str:
    """The same for processes on one machine."""
    with contextlib.suppress(OSError):
        return BOOT.read_text().strip()
    return socket.gethostname()


def read_claim(path: Path) -> str:
    """Who has the right to a name; nobody where there is no claim."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def keep_priority() -> None:
    """Takes back the niceness of 15 that Ray gives its workers, where this process may: children would have it too.

    Beside anything else that computes, a learner or an engine of that niceness hardly runs, and leases end.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


class ProgramSupervisor:
    """The actor. Every answer is JSON."""

    def __init__(self, orphan_seconds: float, group: str) -> None:
        keep_priority()
        self.orphan_seconds, self.group = orphan_seconds, group
        self.heard = time.monotonic()  # when a driver last asked for something
        self.child: Child | None = None
        self.incarnation = ""
        self.ended: dict[str, int | None] = {}  # incarnations whose end was seen here, with their code
        self._renewing: asyncio.Future[None] | None = None
        self._watching = asyncio.ensure_future(self._watch_drivers())

    async def facts(self) -> str:
        import ray

        self.heard = time.monotonic()
        node = ray.get_runtime_context().get_node_id()
        address = ray.util.get_node_ip_address()
        return json.dumps({"host": address, "machine": machine(), "node": node, "pid": os.getpid()})

    async def free_port(self, host: str) -> str:
        with socket.create_server((host, 0)) as found:
            return json.dumps({"port": found.getsockname()[1]})

    async def start(self, text: str) -> str:
        """Starts a program, after the end of one that is still there."""
        self.heard = time.monotonic()
        asked = json.loads(text)
        await self._end(10.0)
        self.incarnation = incarnation = asked["incarnation"]
        announced = Announced(Path(asked["announce"]), asked["host"], incarnation)
        # From where this process has its own: the folder that a child is started in says nothing about that.
        package = str(Path(__file__).parents[2])
        # Ray sets it to the processors that it counts for this actor; how many threads to use is in the arguments.
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": package, **asked["environment"]}

        def started(child: Child) -> None:  # while it loads its model, its lease is renewed as well
            self._renewing = asyncio.ensure_future(self._renew(child, incarnation, Path(asked["claim"])))

        try:
            self.child = await start(
                asked["title"],
                asked["module"],
                asked["arguments"],
                ready=asked["ready"],
                log=Path(asked["log"]) if asked["log"] else None,
                deadline=asked["seconds"],
                leaves=[Path(path) for path in asked["leaves"]],
                announced=announced,
                lease=asked["lease"],
                environment=environment,
                place=Path(asked["folder"]),  # the driver's: a recipe names files from there
                on_start=started,
            )
        except EtudeError as failed:
            self.ended[incarnation] = None
            return json.dumps({"error": str(failed)})
        return json.dumps({"pid": self.child.pid, "said": self.child.said})

    async def wait(self, incarnation: str, seconds: float) -> str:
        """Whether that child is `running`, has `ended` or is `unknown` here; after some time at most."""
        self.heard = time.monotonic()
        if incarnation == self.incarnation and self.child is not None:
            waiting = asyncio.ensure_future(self.child.process.wait())
            done, _ = await asyncio.wait({waiting}, timeout=seconds)
            waiting.cancel()
            if not done:
                return json.dumps({"state": "running"})
            self.ended[incarnation] = self.child.process.returncode
        if incarnation in self.ended:
            return json.dumps({"state": "ended", "code": self.ended[incarnation]})
        return json.dumps({"state": "unknown"})

    async def stop(self, incarnation: str, seconds: float) -> str:
        """Ends that child if it is here, and says what `wait` would."""
        self.heard = time.monotonic()
        if incarnation == self.incarnation:
            await self._end(seconds)
        return await self.wait(incarnation, 0.0)

    async def _end(self, seconds: float) -> None:
        if self.child is not None:
            child, self.child = self.child, None
            await child.close(seconds)
            self.ended[self.incarnation] = child.process.returncode

    async def _renew(self, child: Child, incarnation: str, claim: Path) -> None:
        stdin = child.process.stdin
        assert stdin is not None
        while child.process.returncode is None:
            with contextlib.suppress(OSError):  # the file is out of reach: not renewed
                if read_claim(claim) != incarnation:
                    with contextlib.suppress(ProcessLookupError):
                        child.process.kill()
                    return
                with contextlib.suppress(ConnectionError):
                    stdin.write(b".")
                    await stdin.drain()
            await asyncio.sleep(RENEW)

    async def _watch_drivers(self) -> None:
        """Ends all when no driver has come back for long: nobody will."""
        while time.monotonic() - self.heard < self.orphan_seconds:
            await asyncio.sleep(min(RENEW, self.orphan_seconds))
        await self._end(10.0)
        import ray

        with contextlib.suppress(Exception):  # another of the group was first
            ray.util.remove_placement_group(ray.util.get_placement_group(self.group))
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

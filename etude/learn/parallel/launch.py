"""The processes of a learner's ranks: started here on one machine, or by torchrun on any number of them.

Rank 0 is the process that wants a learner. The others meet it at a store that it opens on a free port (torchrun brings
its own), wait there for a learner to be part of, and end with rank 0. A rank that dies ends all of them: rank 0 says
which one and how, and every rank ends with it.

`python -m etude.learn.parallel.launch` is one of the other ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from etude.core import child_process as child
from etude.core.errors import EtudeError
from etude.core.transport import from_json, to_json
from etude.model.torch_process import prepare

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from etude.learn.parallel.messages import RankSpec

HOST = "127.0.0.1"
DEADLINE = 600.0  # seconds that ranks wait for each other
GRACE = 10.0  # seconds in which rank 0 can say by itself that another rank died; after them it is ended
LOOK = 0.5  # seconds between two looks at the other ranks
END = "end"
AGAIN = "all ranks end; the same command continues from the last checkpoint"
LOG_LINES = 20


class Ranks:
    """The other ranks, from rank 0: processes of ours, or torchrun's. One learner at a time."""

    def __init__(self, ranks: int, *, threads: int = 1, deadline: float = DEADLINE, logs: Path | None = None) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self.ranks, self.deadline = ranks, deadline
        self._store: Store
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._folder = None if logs else tempfile.TemporaryDirectory(prefix="etude-ranks-")
        self._logs = logs or Path(self._folder.name if self._folder else "")
        self._closing = threading.Event()
        if under_torchrun():
            there = int(os.environ["WORLD_SIZE"])
            if there != ranks:
                raise EtudeError(
                    f"torchrun started {there} ranks, but cluster.learner.ranks is {ranks}; make them equal"
                )
            self._store = torchrun_store(deadline)
        else:
            self._store = TCPStore(HOST, 0, None, True, timedelta(seconds=deadline), wait_for_workers=False)
            self._start(self._store.port, threads)
            threading.Thread(target=self._watch, name="rank watch", daemon=True).start()
        self.store: Store = self._store

    def _start(self, port: int, threads: int) -> None:
        for rank in range(1, self.ranks):
            command = [sys.executable, "-m", "etude.learn.parallel.launch", f"--rank={rank}", f"--port={port}"]
            command += [f"--threads={threads}", f"--deadline={self.deadline}", f"--parent={os.getpid()}"]
            with self._log(rank).open("ab") as log:
                # A session of its own: Ctrl-C in the terminal is for rank 0, which decides when ranks end.
                self.processes[rank] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )

    def join(self, spec: RankSpec) -> None:
        """Opens the process group of a learner on the first `spec.layout.ranks` ranks."""
        generation = announce(self._store, json.dumps(to_json(spec)))
        try:
            self.store = open_group(self._store, generation, 0, spec, self.deadline)
        except RuntimeError as failed:
            raise EtudeError(self.reason("start", failed)) from None

    def leave(self) -> None:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()

    def reason(self, verb: str, failed: Exception, number: int = 0) -> str:
        """One sentence about why the ranks cannot go on; `number` of verbs that they were told."""
        first = str(failed).strip().partition("\n")[0]
        end = time.monotonic() + GRACE / 2
        while not (dead := self._dead()) and time.monotonic() < end:
            time.sleep(LOOK / 5)
        self._closing.set()  # from here on it is the caller's to end this process
        if dead:
            return f"{dead} in {verb}; {AGAIN}"
        # Ranks that have not begun are to blame; if there are none, those that are still at it.
        where = {rank: words.split() for rank, words in self._whereabouts().items()}
        late = [rank for rank, words in where.items() if int(words[0]) < number]
        late = late or [rank for rank, words in where.items() if words[1:]]
        if late:
            names = "rank " + " and rank ".join(map(str, late))
            return f"{names} of the learner did not finish {verb} within {self.deadline:g} s; {AGAIN}"
        return f"the ranks of the learner lost each other in {verb} ({first}); {AGAIN}"

    def close(self) -> None:
        """Ends the other ranks."""
        self._closing.set()
        if self.processes:  # torchrun's go on to the next stage
            with contextlib.suppress(RuntimeError):
                announce(self._store, END)
            end = time.monotonic() + GRACE
            for process in self.processes.values():
                try:
                    process.wait(max(0.0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.leave()
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:  # nobody waits for what they are doing
            for process in self.processes.values():
                process.kill()
        self.close()

    def _dead(self) -> str:
        """Which rank ended and how, with the end of its log; nothing while all live."""
        ended = {rank: code for rank, process in self.processes.items() if (code := process.poll()) is not None}
        if not ended:
            return ""
        # Ranks that lose another end as well: the one that was killed is the cause, else the one that wrote first.
        rank = min(ended, key=lambda rank: (ended[rank] >= 0, self._log(rank).stat().st_mtime))
        code = ended[rank]
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        why = child.LACK_OF_MEMORY if code == -signal.SIGKILL else ""
        return f"rank {rank} of the learner {how}{why}{self._log_end(rank)}"

    def _whereabouts(self) -> dict[int, str]:
        """The verb that each rank is in, as far as it said so."""
        found = {}
        with contextlib.suppress(RuntimeError):
            for rank in range(1, self.ranks):
                if self.store.check([f"at/{rank}"]):
                    found[rank] = self.store.get(f"at/{rank}").decode()
        return found

    def _log(self, rank: int) -> Path:
        return self._logs / f"learner-rank-{rank}.log"

    def _log_end(self, rank: int) -> str:
        with contextlib.suppress(OSError):
            lines = [line for line in self._log(rank).read_text(errors="replace").splitlines() if line.strip()]
            if lines:
                return " and said last:\n" + "\n".join(f"    {line}" for line in lines[-LOG_LINES:]) + "\n"
        return ""

    def _watch(self) -> None:
        """Ends this process some seconds after another rank died, where it waits for that rank and cannot know."""
        while not self._closing.wait(LOOK):
            if self._dead():
                if not self._closing.wait(GRACE):
                    print(f"error: {self._dead()}; {AGAIN}", file=sys.stderr, flush=True)
                    os._exit(2)
                return


def announce(store: Store, text: str) -> int:
    """Tells the other ranks what the next learner is, or that there is none; its number."""
    generation = int(store.add("generation", 1)) - 1
    store.set(f"spec/{generation}", text)
    return generation


def open_group(store: Store, generation: int, rank: int, spec: RankSpec, deadline: float) -> Store:
    """Joins the process group of a learner; the part of the store that is its own."""
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    device = torch.device(spec.device)
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
    if not under_torchrun() and sys.platform == "linux":
        # A host name that does not resolve must not matter here; beside nccl ranks talk over gloo, too.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    own = PrefixStore(f"learner-{generation}", store)
    wait = timedelta(seconds=deadline)
    backend = "nccl" if device.type == "cuda" else "gloo"
    meeting = PrefixStore("group", own)
    dist.init_process_group(backend, store=meeting, rank=rank, world_size=spec.layout.ranks, timeout=wait)
    return own


def under_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    return int(environment.get("WORLD_SIZE", "1")) > 1 and "MASTER_ADDR" in environment


def torchrun_store(deadline: float) -> Store:
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(host, port, None, serves, timedelta(seconds=deadline), wait_for_workers=False)
    return PrefixStore(f"etude-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def serve_torchrun_rank() -> None:
    """What the command does on every rank but 0 of those that torchrun started."""
    prepare(int(os.environ.get("OMP_NUM_THREADS", "1")))
    serve_rank(int(os.environ["RANK"]), torchrun_store(DEADLINE), DEADLINE)


def end_torchrun_ranks() -> None:
    """Said by rank 0 when its command is done."""
    announce(torchrun_store(DEADLINE), END)


def serve_rank(rank: int, store: Store, deadline: float) -> None:
    """One of the other ranks: part of one learner after another until rank 0 ends."""
    import torch.distributed as dist

    from etude.learn.parallel.lead import follow, wait_for
    from etude.learn.parallel.messages import RankSpec

    generation = 0
    while True:
        text = wait_for(store, f"spec/{generation}").decode()
        if text == END:
            return
        spec = from_json(RankSpec, json.loads(text))
        if rank < spec.layout.ranks:
            own = open_group(store, generation, rank, spec, deadline)
            follow(spec, own, lambda where, own=own: own.set(f"at/{rank}", where))  # type: ignore[misc]
            dist.destroy_process_group()
        generation += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m etude.learn.parallel.launch", description="A rank of a learner.")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--port", type=int, default=0, help="where rank 0 keeps the store, on this machine")
    parser.add_argument("--torchrun", action="store_true", help="rank and store are in torchrun's variables")
    child.add_arguments(parser)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=DEADLINE)
    options = parser.parse_args()
    child.end_with(options, (options.folder,))
    try:
        prepare(options.threads)
        if options.torchrun:  # started by a placement, which waits for this line
            print("etude rank ready", flush=True)
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            serve_rank(int(os.environ["RANK"]), torchrun_store(options.deadline), options.deadline)
            return 0
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        store = TCPStore(HOST, options.port, None, False, timedelta(seconds=options.deadline))
        serve_rank(options.rank, store, options.deadline)
    except EtudeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

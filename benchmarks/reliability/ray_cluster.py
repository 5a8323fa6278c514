"""A training run on a Ray cluster of three nodes on this machine: what it costs, and what survives kills.

    python -m benchmarks.reliability.ray_cluster compare --model DIR [--steps 6] [--pairs 2]
    python -m benchmarks.reliability.ray_cluster chaos [--kills 10] [--model DIR] [--seed 0] [--bucket]
    python -m benchmarks.reliability.ray_cluster resize [--model DIR] [--bucket]

Three `ray start`s are three nodes. `compare` trains the recipe nano from a fine-tuned checkpoint locally and on Ray, in
turns, and counts the processor-seconds of our processes for each rollout, from the first step to the last: starting is
left out. Ray's own processes are counted apart. `chaos` hits a run by SIGKILL again and again: driver, learner, an
engine, a rollout worker, the raylet of a node, which another node then replaces, Ray's head (its GCS, which is started
again and finds what it kept on the disk), and with --bucket the S3 server that the weights go through (moto, which
comes back empty). A killed driver, also one that died with the head, is started again by the same command; everything
else must come back by itself. At the end the journal must show that no group was lost and none was trained twice. Back
at full speed means: every program is there again, and two further steps are trained. `resize` asks for more and fewer
engines while the run goes on (RUN/live.toml), and kills one that came later.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.reliability.killed_run import (
    BAD,
    DEADLINE,
    MODULES,
    Running,
    answer,
    audit,
    children,
    command_of,
    make_toy,
    options_of,
    settings,
)

KINDS = ("driver", "learner", "engine", "worker", "node", "head")
BUCKET = "weights"
NODES, CPUS = 3, 4  # of which any two have room for all programs
MARK = "ETUDE_RAY_CLUSTER"  # in the environment of everything that the nodes start
TICK = os.sysconf("SC_CLK_TCK")
START = 120.0  # seconds for a node to be there
HEAD_SECONDS = 5.0  # in which a driver that does not outlive the head ends


class Nodes:
    """Several nodes of one Ray cluster, each a `ray start` of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        # A node's sockets lie below it, and their paths are short of space.
        self.temporary = Path(tempfile.mkdtemp(prefix="er-", dir="/tmp"))
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.log = folder / "ray.log"
        self.head = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self.temporary}")
        try:
            self.add(*self.head)
            host = self.log.read_text().split("Local node IP: ")[1].split()[0]
            self.address = f"{host}:{port}"
            for _ in range(NODES - 1):
                self.add(f"--address={self.address}")
        except BaseException:
            self.close()
            raise

    def add(self, *options: str, tries: int = 3) -> None:
        """Another node. Ray gives one 30 s to start, which are too few on a very busy machine: then again."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        ray = Path(sys.executable).with_name("ray")
        fixed = [f"--num-cpus={CPUS}", "--object-store-memory=80000000", "--disable-usage-stats"]
        # A node whose command waits for it ends with the first of its processes; the head's must outlive its GCS.
        fixed += [] if "--head" in options else ["--block"]
        quiet = {"RAY_AUTH_MODE": "disabled", "RAY_agent_register_timeout_ms": "180000", MARK: str(self.folder)}
        quiet |= {"RAY_worker_niceness": "0"}  # as docs/operate/ray.md says
        # So that a head that is started again finds what the one before knew.
        quiet |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self.folder / "gcs")}
        with self.log.open("ab") as log:
            node = subprocess.Popen(
                [ray, "start", *options, *fixed],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **quiet, "RAY_LOG_STYLE": "record"},
            )
        self.nodes.append(node)
        end = time.monotonic() + START
        while "Ray runtime started" not in self.log.read_text()[begin:]:
            if tries > 1 and node.poll() not in (None, 0) and "--head" not in options:
                self.add(*options, tries=tries - 1)
                return
            if node.poll() not in (None, 0) or time.monotonic() > end:
                raise SystemExit(f"a node did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def kill_head(self) -> int:
        """The head's GCS, which is started again as it was. The pid of the killed."""
        (pid,) = [pid for pid in self.left() if "gcs_server" in command_of(pid).partition("\0")[0]]
        command = command_of(pid).rstrip("\0").split("\0")
        variables = dict(each.split("=", 1) for each in _environment(pid).split("\0") if "=" in each)
        os.kill(pid, signal.SIGKILL)
        with self.log.open("ab") as log:
            self.nodes.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=variables))
        return pid

    def raylets(self) -> list[int]:
        """Of the nodes beside the head."""
        found = []
        for node in self.nodes:
            for pid in children(node.pid):
                if command_of(pid).partition("\0")[0].endswith("/raylet"):
                    found.append(pid)
        return found

    def close(self) -> None:
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + 20
        # Whatever a killed raylet left: everything that a node started has the mark.
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.2)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for node in self.nodes:
            node.wait()

    def left(self) -> list[int]:
        return [pid for pid in _pids() if f"{MARK}={self.folder}\0" in _environment(pid)]


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and int(path.name) != os.getpid()]


def _environment(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace") + "\0"
    return ""


class RunOnRay(Running):
    """The command under way, whose programs are children of Ray's supervisors and name the run."""

    def pids(self, kind: str) -> list[int]:
        return super().pids("orchestrator" if kind == "driver" else kind)

    def candidates(self) -> list[int]:
        return [pid for pid in _pids() if f"{self.run}/rl/cluster/" in command_of(pid)]

    def supervisors(self) -> list[int]:
        return [pid for pid in _pids() if command_of(pid).startswith("ray::ProgramSupervisor")]


# What it costs


def family(pid: int) -> list[int]:
    """A process and all below it: a worker's sandboxes are children of its launcher."""
    return [pid, *(each for child in children(pid) for each in family(child))]


def seconds_of(pids: list[int], seen: dict[int, float]) -> float:
    """Processor-seconds of these processes and of their children that have ended; `seen` remembers the dead."""
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seen[pid] = sum(map(int, fields[11:15])) / TICK
    return sum(seen.values())


def measure(folder: Path, model: Path, steps: int, name: str, nodes: Nodes | None) -> dict[str, Any]:
    """One run; processor-seconds for each rollout between its first step and its last."""
    options = [f"rl.steps={steps}", "rl.eval_every=0", f"rl.save_every={steps}", "run.threads=1"]
    options += ["cluster.rollout_workers=1", "cluster.engines=1"]
    if nodes is not None:
        options += ["cluster.kind=ray", f"cluster.address={nodes.address}"]
    temporary = folder / f"tmp-{name}"
    temporary.mkdir()
    kind = RunOnRay if nodes is not None else Running
    running = kind(folder / name, model, options, "nano", temporary)
    ours: dict[int, float] = {}
    rays: dict[int, float] = {}
    first: tuple[float, float, int] | None = None
    last = (0.0, 0.0, 0)
    seen_rows = 0
    while running.process.poll() is None:
        pids = [running.process.pid]
        for part in MODULES:
            pids += running.pids(part)
        if nodes is not None:
            pids += running.supervisors()
            others = {each for pid in pids for each in family(pid)}
            rays_now = seconds_of([pid for pid in nodes.left() if pid not in others and pid not in ours], rays)
        else:
            rays_now = 0.0
        now = seconds_of([each for pid in pids for each in family(pid)], ours)
        rows = running.rows()
        if len(rows) > seen_rows:
            seen_rows = len(rows)
            last = now, rays_now, sum(row["rollouts"] for row in rows)
            first = first or last
        time.sleep(0.25)
    if running.process.returncode != 0 or first is None:
        raise SystemExit(f"the run failed:\n{running.log.read_text()[-3000:]}")
    rows, rollouts = running.rows(), last[2] - first[2]
    return {
        "where": "ray" if nodes is not None else "local",
        "rollouts": rollouts,
        "cpu_s_per_rollout": round((last[0] - first[0]) / rollouts, 4),
        "ray_cpu_s_per_rollout": round((last[1] - first[1]) / rollouts, 4),
        "reward": round(mean(row["reward"] for row in rows), 4),
        "pass_rate": round(mean(row["pass_rate"] for row in rows), 4),
        "sampled_tokens": sum(row["sampled_tokens"] for row in rows),
    }


def compare(options: argparse.Namespace, folder: Path, nodes: Nodes) -> dict[str, Any]:
    found = []
    for pair in range(options.pairs):
        for where in (None, nodes):
            name = f"{'ray' if where else 'local'}-{pair}"
            found.append(measure(folder, options.model, options.steps, name, where))
            print(found[-1], file=sys.stderr, flush=True)
    local, ray = (
        mean(one["cpu_s_per_rollout"] for one in found if one["where"] == where) for where in ("local", "ray")
    )
    return {"ok": ray <= 1.15 * local, "ray_over_local": round(ray / local, 4), "runs": found}


# What survives


def wait_back(running: RunOnRay, wanted: dict[str, int], gone: int, rows: int, begin: float) -> float:
    """Seconds from `begin` until every program is there again and two more steps are trained."""
    while True:
        there = {kind: running.pids(kind) for kind in wanted}
        back = all(len(there[kind]) >= count and gone not in there[kind] for kind, count in wanted.items())
        if back and len(running.rows()) >= rows + 2:
            return time.monotonic() - begin
        if running.process.poll() not in (None, 0):
            raise SystemExit(f"the run failed:\n{running.log.read_text()[-3000:]}")
        if running.process.poll() == 0 or time.monotonic() - begin > DEADLINE:
            raise SystemExit(f"it did not come back within {DEADLINE} s:\n{running.log.read_text()[-3000:]}")
        time.sleep(0.1)


class Bucket:
    """An S3 server. It keeps everything in memory: one that was killed comes back empty."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.log = folder / "bucket.log"
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
        os.environ |= keys | {"AWS_ALLOW_HTTP": "true", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + START
        while True:
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{BUCKET}", method="PUT")
            try:
                urllib.request.urlopen(request, timeout=10).close()
                return
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise SystemExit(f"the bucket's server did not start:\n{self.log.read_text()[-2000:]}") from None
                time.sleep(0.1)

    def kill(self) -> int:
        pid = self.process.pid
        self.close()
        self.start()
        return pid

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def begin_run(
    options: argparse.Namespace, folder: Path, nodes: Nodes, bucket: Bucket | None, steps: int
) -> Callable[[], RunOnRay]:
    """What starts the run, and starts it again."""
    toy = options.model is None
    model, temporary, run = make_toy(folder, options.model), folder / "tmp", folder / "run"
    temporary.mkdir()
    overrides = settings(model, steps, options.workers, options.engines, toy)
    overrides += ["cluster.kind=ray", f"cluster.address={nodes.address}"]
    if bucket is not None:
        overrides += [f"cluster.weights=s3://{BUCKET}/run"]
    return lambda: RunOnRay(run, model, overrides, "" if toy else "nano", temporary)


def end_run(running: RunOnRay) -> dict[str, Any]:
    """Stopped as by Ctrl-C: the rest of the steps is of no interest, and what was trained must be whole."""
    running.process.send_signal(signal.SIGINT)
    code = running.process.wait(DEADLINE)
    if code != 0:
        raise SystemExit(f"the run did not stop in order:\n{running.log.read_text()[-3000:]}")
    trained = max((row["step"] for row in running.rows()), default=0)
    found = audit(running.run, trained)
    whole = not any(found[name] for name in BAD)
    return {"whole": whole, "steps": trained, **found, "left_programs": len(running.candidates())}


def resize(options: argparse.Namespace, folder: Path, nodes: Nodes, bucket: Bucket | None) -> dict[str, Any]:
    running, seen = begin_run(options, folder, nodes, bucket, 1000)(), list[dict[str, Any]]()
    running.wait_rows(2)
    first = options.engines
    for wanted in (first + 1, first, first + 2, 1, first):
        began, rows, before = time.monotonic(), len(running.rows()), running.pids("engine")
        working = folder / "live.toml"
        working.write_text(f"cluster.engines = {wanted}\n")
        working.replace(running.run / "live.toml")
        others = {"learner": 1, "worker": options.workers}
        wait_back(running, {**others, "engine": wanted}, 0, rows, began)
        while len(running.pids("engine")) != wanted and time.monotonic() - began < DEADLINE:
            time.sleep(0.1)
        facts = {"engines": wanted, "seconds": round(time.monotonic() - began, 1), "load": _load()}
        if len(running.pids("engine")) != wanted:
            raise SystemExit(f"{wanted} engines were wanted:\n{running.log.read_text()[-3000:]}")
        if later := [pid for pid in running.pids("engine") if pid not in before]:
            began, rows = time.monotonic(), len(running.rows())
            os.kill(later[0], signal.SIGKILL)
            facts["killed_back_s"] = round(wait_back(running, {**others, "engine": wanted}, later[0], rows, began), 1)
        seen.append(facts)
        print(facts, file=sys.stderr, flush=True)
    found = end_run(running)
    return {"ok": found["whole"], "changes": seen, **found}


def _load() -> float:
    return round(os.getloadavg()[0], 1)


def chaos(options: argparse.Namespace, folder: Path, nodes: Nodes, bucket: Bucket | None) -> dict[str, Any]:
    # Enough steps that a toy is not finished before the last kill.
    start = begin_run(options, folder, nodes, bucket, options.kills * 60 + 6)
    chance, began = random.Random(options.seed), time.monotonic()
    kinds = (*KINDS, *(("bucket",) if bucket is not None else ()))
    seen, order, running = list[dict[str, Any]](), list[str](), start()
    wanted = {"learner": 1, "engine": options.engines, "worker": options.workers}
    while len(seen) < options.kills:
        if not running.wait_rows(len(running.rows()) + 2 + chance.randint(0, 1)):
            break
        time.sleep(chance.random() * 0.5)
        order = order or chance.sample(kinds, len(kinds))
        kind = order.pop()
        rows = len(running.rows())
        facts: dict[str, Any] = {"victim": kind, "step": rows, "load": _load()}
        begin = time.monotonic()
        if kind == "head":
            pid = nodes.kill_head()
        elif kind == "bucket" and bucket is not None:
            pid = bucket.kill()
        else:
            pid = chance.choice(nodes.raylets() if kind == "node" else running.pids(kind))
            os.kill(pid, signal.SIGKILL)
        if kind == "node":
            nodes.add(f"--address={nodes.address}")
        if kind == "driver":
            running.process.wait(DEADLINE)
        with contextlib.suppress(subprocess.TimeoutExpired):
            if kind == "head":  # whether a driver outlives it is not asked for: then it is resumed
                running.process.wait(HEAD_SECONDS)
        if kind in ("driver", "head") and running.process.poll() is not None:
            facts["resumed"] = True
            running = start()
        facts["back_s"] = round(wait_back(running, wanted, pid, rows, begin), 1)
        facts["load_then"] = _load()
        seen.append(facts)
        print(f"kill {len(seen)}: {facts}", file=sys.stderr, flush=True)
    found = end_run(running)
    quick = all(facts["back_s"] <= 60 for facts in seen)
    return {
        "ok": len(seen) == options.kills and found["whole"] and quick,
        "kills": seen,
        "slowest_back_s": max((facts["back_s"] for facts in seen), default=0.0),
        **found,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("compare", "chaos", "resize"))
    parser.add_argument("--steps", type=int, default=6, help="of each run of compare")
    parser.add_argument("--pairs", type=int, default=2, help="of runs of compare")
    parser.add_argument("--bucket", action="store_true", help="weights go through an S3 server; chaos kills it too")
    parser.add_argument("--keep", type=Path, help="folder that the run is left in, to look at")
    options_of(parser, 10)
    options = parser.parse_args()
    if options.what == "compare" and options.model is None:
        parser.error("compare needs --model")
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with tempfile.TemporaryDirectory(prefix="ray-cluster-") as place:
        folder = options.keep or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as opened:
            bucket = Bucket(folder) if options.bucket else None
            if bucket is not None:
                opened.callback(bucket.close)
            nodes = Nodes(folder)
            opened.callback(nodes.close)
            if options.what == "compare":
                result = compare(options, folder, nodes)
            else:
                result = (chaos if options.what == "chaos" else resize)(options, folder, nodes, bucket)
    answer(result, options.json)


if __name__ == "__main__":
    main()

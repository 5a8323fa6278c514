"""A training run on a Ray cluster of three nodes on this machine: what it costs, and what survives kills.

    python benchmarks/reliability/ray_cluster.py compare --model DIR [--steps 6] [--pairs 2]
    python benchmarks/reliability/ray_cluster.py chaos [--kills 10] [--model DIR] [--seed 0]

Three `ray start`s are three nodes. `compare` trains the recipe nano from a fine-tuned checkpoint locally and on Ray, in
turns, and counts the processor-seconds of our processes for each rollout, from the first step to the last: starting is
left out. Ray's own processes are counted apart. `chaos` hits a run by SIGKILL again and again: driver, learner, an
engine, a rollout worker, or the raylet of a node, which another node then replaces. A killed driver is started again by
the same command; everything else must come back by itself. At the end the journal must show that no group was lost and
none was trained twice. Back at full speed means: every program is there again, and two further steps are trained.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).resolve()
KINDS = ("driver", "learner", "engine", "worker", "node")
NODES, CPUS = 3, 4  # of which any two have room for all programs
MARK = "ETUDE_RAY_CLUSTER"  # in the environment of everything that the nodes start
TICK = os.sysconf("SC_CLK_TCK")
START = 120.0  # seconds for a node to be there


def kill_loop() -> Any:
    """benchmarks/reliability/kill_loop.py: the run, its settings, and the reader of its journal."""
    spec = importlib.util.spec_from_file_location("kill_loop", HERE.with_name("kill_loop.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOOP = kill_loop()


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
        self.add("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self.temporary}")
        host = self.log.read_text().split("Local node IP: ")[1].split()[0]
        self.address = f"{host}:{port}"
        for _ in range(NODES - 1):
            self.add(f"--address={self.address}")

    def add(self, *options: str) -> None:
        begin = self.log.stat().st_size if self.log.exists() else 0
        ray = Path(sys.executable).with_name("ray")
        fixed = [f"--num-cpus={CPUS}", "--object-store-memory=80000000", "--block", "--disable-usage-stats"]
        quiet = {"RAY_AUTH_MODE": "disabled", "RAY_agent_register_timeout_ms": "180000", MARK: str(self.folder)}
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
            if node.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"a node did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def raylets(self) -> list[int]:
        """Of the nodes beside the head."""
        found = []
        for node in self.nodes[1:]:
            for pid in map(int, _children(node.pid)):
                if LOOP.command_of(pid).partition("\0")[0].endswith("/raylet"):
                    found.append(pid)
        return found

    def close(self) -> None:
        for node in self.nodes:
            node.terminate()
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


def _children(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return []


def _environment(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace") + "\0"
    return ""


class RunOnRay(LOOP.Running):  # type: ignore[misc,name-defined]
    """The command under way, whose programs are children of Ray's supervisors and name the run."""

    def pids(self, kind: str) -> list[int]:
        return super().pids("orchestrator" if kind == "driver" else kind)  # type: ignore[no-any-return]

    def _candidates(self) -> list[str]:
        return [str(pid) for pid in _pids() if f"{self.run}/rl/cluster/" in LOOP.command_of(pid)]

    def supervisors(self) -> list[int]:
        return [pid for pid in _pids() if LOOP.command_of(pid).startswith("ray::ProgramSupervisor")]


# What it costs


def family(pid: int) -> list[int]:
    """A process and all below it: a worker's sandboxes are children of its launcher."""
    return [pid, *(each for child in map(int, _children(pid)) for each in family(child))]


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
    kind = RunOnRay if nodes is not None else LOOP.Running
    running = kind(folder / name, model, options, "nano", temporary)
    ours: dict[int, float] = {}
    rays: dict[int, float] = {}
    first: tuple[float, float, int] | None = None
    last = (0.0, 0.0, 0)
    seen_rows = 0
    while running.process.poll() is None:
        pids = [running.process.pid]
        for part in LOOP.MODULES:
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


def wait_back(running: RunOnRay, wanted: dict[str, int], gone: int, rows: int) -> float:
    """Seconds until every program is there again and two more steps are trained."""
    begin = time.monotonic()
    while True:
        there = {kind: running.pids(kind) for kind in wanted}
        back = all(len(there[kind]) >= count and gone not in there[kind] for kind, count in wanted.items())
        if back and len(running.rows()) >= rows + 2:
            return time.monotonic() - begin
        if running.process.poll() not in (None, 0):
            raise SystemExit(f"the run failed:\n{running.log.read_text()[-3000:]}")
        if running.process.poll() == 0 or time.monotonic() - begin > LOOP.DEADLINE:
            raise SystemExit(f"it did not come back within {LOOP.DEADLINE} s:\n{running.log.read_text()[-3000:]}")
        time.sleep(0.1)


def chaos(options: argparse.Namespace, folder: Path, nodes: Nodes) -> dict[str, Any]:
    toy = options.model is None
    model, temporary, run = options.model or folder / "model", folder / "tmp", folder / "run"
    temporary.mkdir()
    if toy:
        model.mkdir()
        LOOP.older().make_model(model)
    steps = options.kills * 30 + 6  # enough that a toy is not finished before the last kill
    overrides = LOOP.settings(model, steps, options.workers, options.engines, toy)
    overrides += ["cluster.kind=ray", f"cluster.address={nodes.address}"]
    chance, began = random.Random(options.seed), time.monotonic()
    recipe, seen, order = "" if toy else "nano", list[dict[str, Any]](), list[str]()
    running = RunOnRay(run, model, overrides, recipe, temporary)
    while len(seen) < options.kills:
        if not running.wait_rows(len(running.rows()) + 2 + chance.randint(0, 1)):
            break
        time.sleep(chance.random() * 0.5)
        wanted = {kind: len(running.pids(kind)) for kind in LOOP.MODULES}
        order = order or chance.sample(KINDS, len(KINDS))
        kind = order.pop()
        pid = chance.choice(nodes.raylets() if kind == "node" else running.pids(kind))
        rows = len(running.rows())
        facts: dict[str, Any] = {"victim": kind, "step": rows}
        os.kill(pid, signal.SIGKILL)
        if kind == "driver":
            running.process.wait(LOOP.DEADLINE)
            running = RunOnRay(run, model, overrides, recipe, temporary)
        if kind == "node":
            nodes.add(f"--address={nodes.address}")
        facts["back_s"] = round(wait_back(running, wanted, pid, rows), 1)
        seen.append(facts)
        print(f"kill {len(seen)}: {facts}", file=sys.stderr, flush=True)
    # The rest of the steps is of no interest: it is stopped as by Ctrl-C, and what was trained must be whole.
    running.process.send_signal(signal.SIGINT)
    code = running.process.wait(LOOP.DEADLINE)
    if code != 0:
        raise SystemExit(f"the run did not stop in order:\n{running.log.read_text()[-3000:]}")
    trained = max((row["step"] for row in running.rows()), default=0)
    found = LOOP.older().audit(run, trained)
    return {
        "ok": len(seen) == options.kills
        and not any(found[name] for name in ("skipped", "unexpected", "twice", "odd_steps"))
        and all(facts["back_s"] <= 60 for facts in seen),
        "kills": seen,
        "slowest_back_s": max((facts["back_s"] for facts in seen), default=0.0),
        "steps": trained,
        **found,
        "left_programs": len(running._candidates()),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("compare", "chaos"))
    parser.add_argument("--model", type=Path, help="a fine-tuned checkpoint of the recipe nano")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.what == "compare" and options.model is None:
        parser.error("compare needs --model")
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with tempfile.TemporaryDirectory(prefix="ray-cluster-") as place:
        folder = Path(place)
        nodes = Nodes(folder)
        try:
            result = compare(options, folder, nodes) if options.what == "compare" else chaos(options, folder, nodes)
        finally:
            nodes.close()
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:>18}  {value}")
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()

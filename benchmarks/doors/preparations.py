"""What a few commands of the pages need beside the stand-ins. Each is made once, before the first that needs it.

A preparation that cannot be made says what this machine lacks; the command is then not run, with that reason.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from benchmarks.doors.base_image import write_base
from benchmarks.doors.small_repository import write_repository
from benchmarks.doors.stand_ins import QUICK_RL

if TYPE_CHECKING:
    from benchmarks.doors.run_commands import World

BASE = "etude-commands-base"
FOREIGN = {
    "task.toml": 'schema_version = "1.4"\n[verifier]\ntimeout_sec = 60.0\n',
    "instruction.md": "Write 42 to /app/answer.\n",
    "environment/Dockerfile": f"FROM {BASE}\nRUN mkdir /app\nWORKDIR /app\n",
    "tests/test.sh": '[ "$(cat /app/answer)" = 42 ] && echo 1 > /logs/verifier/reward.txt || '
    "echo 0 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "#!/bin/sh\necho 42 > answer\n",
}


class Lacking(Exception):
    """What this machine does not have."""


def prepare(text: str, world: World) -> str:
    """Makes what a command needs; what is lacking for it, or nothing."""
    for number, (pattern, make) in enumerate(PREPARATIONS):
        if re.search(pattern, text):
            if number not in world.prepared:
                try:
                    make(world)
                    world.prepared[number] = ""
                except Lacking as lacking:
                    world.prepared[number] = str(lacking)
            return world.prepared[number]
    return ""


def _tasks_of_one_repository(world: World) -> None:
    if not (world.folder / "tasks/made").exists():
        world.must("tasks", "make", "shop", "--from", "deletion", "--count", "4", "--out", "tasks/made")


def _a_refactoring(world: World) -> None:
    folder = world.folder / "tasks/renamed"
    if not folder.exists():
        world.must("tasks", "make", "shop", "--from", "refactoring", "--count", "1", "--out", "tasks/renamed")
    world.names["renamed"] = f"tasks/renamed/{next(path.name for path in folder.iterdir() if path.is_dir())}"


def _another_repository(world: World) -> None:
    """One that is not installed yet."""
    shutil.rmtree(world.folder / "other", ignore_errors=True)
    write_repository(world.folder / "other")
    (world.folder / "other/NEWS").write_text(f"{time.time()}\n")


def _lookups(world: World) -> None:
    """Rollouts in which an agent read an installed library."""
    world.must("rollout", world.names["task"], "--policy", world.names["hosted"], "--save", "looked")


def _rows(world: World) -> None:
    git = ["git", "-C", str(world.folder / "history")]
    commit, patch = (
        subprocess.run([*git, *words], capture_output=True, text=True, check=True, timeout=60).stdout
        for words in (("rev-parse", "HEAD~1"), ("diff", "HEAD~1", "HEAD"))
    )
    tests = (
        "--- /dev/null\n+++ b/test_a.py\n@@ -0,0 +1,4 @@\n+from a import f\n+\n+def test_f():\n+    assert f(0) == 3\n"
    )
    row = {"instance_id": "mine__history-1", "repo": "mine/history", "base_commit": commit.strip(), "patch": patch}
    row |= {"test_patch": tests, "problem_statement": "Add 3.", "FAIL_TO_PASS": '["test_a.py::test_f"]'}
    (world.folder / "rows.jsonl").write_text(json.dumps(row) + "\n")


def _results(world: World) -> None:
    name = "average-and-best/results/rl-0.json"
    (world.folder / "OUT").mkdir(exist_ok=True)
    (world.folder / "OUT/results.json").write_text(
        json.dumps({name: json.loads((world.folder / "studies" / name).read_text())})
    )


def _origin_of_the_page(world: World) -> None:
    """The page's own folder, where the forge finds it."""
    from benchmarks.doors.page_commands import ROOT
    from etude.forge import origins

    page = (ROOT / "docs/extend/add-an-origin.md").read_text()
    folder = world.folder / "origins/lost_default"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text("")
    (folder / "origin.py").write_text(page.split("```python\n")[1].split("```")[0])
    origins.__path__.append(str(folder.parent))


def _run_under_way(world: World) -> None:
    """A training run that publishes its weights, for engines that are lent to it."""
    weights = world.folder / "new/weights"
    more = [*QUICK_RL.split(), "rl.steps=100000", "rl.seconds=600", f"cluster.weights={weights}"]
    world.start("rl", "nano", *more, "--run", "new/lent")
    until = time.monotonic() + 120
    while not (world.folder / "new/lent/metrics.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.5)


def _engine_and_foreign_task(world: World) -> None:
    from etude.core.errors import EtudeError
    from etude.sandbox.docker.engine import Engine

    try:
        engine = Engine.find()
    except EtudeError as error:
        raise Lacking(f"needs a container engine: {error}") from None
    write_base(world.folder / "base.tar")
    archive = str(world.folder / "base.tar")
    subprocess.run([*engine.command, "import", archive, BASE], capture_output=True, check=True, timeout=120)
    for path, text in FOREIGN.items():
        (world.folder / "tasks-foreign" / path).parent.mkdir(parents=True, exist_ok=True)
        (world.folder / "tasks-foreign" / path).write_text(text)


def _kubernetes(world: World) -> None:
    if "ETUDE_KUBERNETES" not in os.environ and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise Lacking("needs a Kubernetes cluster: tests/sandbox/kubernetes keeps such pods on a stand-in server")


def _npm(world: World) -> None:
    if shutil.which("npm") is None or subprocess.run(["npm", "view", "qs", "version"], capture_output=True).returncode:
        raise Lacking("needs npm and its index: tests/forge/languages has JavaScript from local archives")


def _index(world: World) -> None:
    if subprocess.run(
        ["pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(world.folder / "index"), "parse"],
        capture_output=True,
    ).returncode:
        raise Lacking("needs an index of packages: tests/forge/ladder and tests/forge/origins make such tasks")


def _package(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise Lacking(f"needs the extra {name}: tests/core/sinks")


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


PREPARATIONS = [
    (r"--lend ", _run_under_way),
    (r"npm:", _npm),
    (r"etude sandbox pods (?!.*--show)\S", _kubernetes),
    (r"--sandbox docker", _engine_and_foreign_task),
    (r"etude tasks ladder \w|--from docstrings", _index),
    (r"etude bench fresh \S", _lookups),
    (r"etude env install .*--policy \W?(?:http|openai)", _another_repository),
    (r"use=.wandb", lambda world: _package("wandb")),
    (r"use=.tensorboard", lambda world: _package("tensorboard")),
    (r"etude tasks combine \S", _tasks_of_one_repository),
    (r"etude tasks import \w", _rows),
    (r"--from lost_default", _origin_of_the_page),
    (r"--policy attack:alias", _a_refactoring),
    (r"etude study add", _results),
]

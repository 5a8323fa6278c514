"""Which files of etude/ one training step runs, by process: what docs/rooms/one-step.md counts.

    python benchmarks/step_files.py [OVERRIDES ...] [--recipe nano] [--json]

A model with random weights trains on katas for a few steps. From its second publish to its fourth every function that
runs in the orchestrator, the engine and the learner is seen by `sys.setprofile`; modules that are only loaded, and what
runs inside sandboxes, are not. FOLDERS count as one file each, as what runs of them is drawn. Such a model edits
nothing and passes nowhere, so the scripted reference solves one task in the same environment meanwhile; that script and
what it calls are left out. A part of the reward that varies by chance gives the step something to learn from. Exits 1
where the page and the step differ.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import etude
from etude.core import recipe as recipes
from etude.core.policy import Version
from etude.core.run import Run
from etude.forge.katas.task_source import katas
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.policies.scripted import scripted
from etude.rl.loop import Training
from etude.rl.orchestrator import train
from etude.rollout.rollout import run_rollout
from etude.tokens.tokenizer import Tokenizer

PACKAGE = Path(etude.__file__).parent
PAGE = PACKAGE.parent / "docs" / "rooms" / "one-step.md"
FOLDERS = ("forge/katas/families/",)
WINDOW = (2, 4)  # publishes between which a function counts
SCRIPT = "/policies/scripted.py"
CHANCE = """
from etude.reward.base import Part


class Chance(Part):
    def score(self, rollout):
        return sum(id for segment in rollout.trajectory.segments for id in segment.ids) % 7 / 7
"""


def see(folder: str, package: str, script: str) -> None:
    """Writes down each file of which a function runs while the window is open, in the process that calls this.

    At once, as an engine is killed in the end. The source of this function is all that a child has of this script.
    """
    import mmap
    import os
    import sys
    import threading
    from pathlib import Path
    from types import CodeType, FrameType

    with Path(f"{folder}/window").open() as file:
        window = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
    arguments = sys.orig_argv
    name = arguments[arguments.index("-m") + 1] if "-m" in arguments[:-1] else "etude.rl.orchestrator"
    found, seen = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), set[CodeType]()

    def of_script(frame: FrameType | None) -> bool:
        while frame is not None and not frame.f_code.co_filename.endswith(script):
            frame = frame.f_back
        return frame is not None

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if window[0] and event == "call" and code not in seen and not of_script(frame):
            seen.add(code)
            # Bodies of modules and of classes are not optimised: those run where something is loaded.
            if code.co_flags & 1 and code.co_filename.startswith(package):
                os.write(found, f"{code.co_filename[len(package) + 1 :]}\n".encode())

    threading.setprofile(look)
    sys.setprofile(look)


def small_model(path: Path) -> Path:
    """Two layers of random weights, and the native dialect."""
    tokenizer = Tokenizer.train([task.instruction for task in katas("train", 40, seed=3)], 400)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    shape: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, **heads}
    save_model(path, Decoder(ModelConfig(vocab_size=tokenizer.vocab_size, **shape), seed=1))
    tokenizer.save(path)
    return path


async def watched_steps(training: Training, window: Path) -> dict[str, Any]:
    """The run, in which the window is open between two publishes; meanwhile a rollout that edits and passes."""
    publish, publishes = training.learner.publish, 0

    async def solve() -> None:
        environment = training.environment
        task = next(training.source.tasks(0))
        policy = scripted("reference", task, dialect=environment.setup.dialect)
        outcome = await run_rollout(task, policy, environment.host, environment.setup)
        assert getattr(outcome, "passed", False), f"the reference solves its task: {outcome}"

    def set_window(state: bytes) -> None:
        with window.open("r+b") as file:  # in place: every process has mapped it
            file.write(state)

    async def counted(version: Version) -> None:
        nonlocal publishes
        publishes += 1
        await publish(version)
        if publishes == WINDOW[0]:
            set_window(b"\1")
            await solve()
        elif publishes == WINDOW[1]:
            set_window(b"\0")

    training.learner.publish = counted  # type: ignore[method-assign]
    return await training.work()


def trace(recipe: str, overrides: list[str]) -> dict[str, list[str]]:
    """Process -> its files, relative to the package."""
    with tempfile.TemporaryDirectory(prefix="step-files-") as name:
        folder = Path(name)
        window = folder / "window"
        window.write_bytes(b"\0")
        (folder / "chance.py").write_text(CHANCE)
        call = f"see({name!r}, {str(PACKAGE)!r}, {SCRIPT!r})"
        child = f"from __future__ import annotations\n{inspect.getsource(see)}\n{call}\n"
        (folder / "sitecustomize.py").write_text(child)
        settings = [
            *("rl.first_task=0", f"rl.steps={WINDOW[1] + 1}", "rl.seconds=0", "rl.groups=2", "rl.group=4"),
            *("rl.concurrency=8", "rl.eval_every=0", "rl.save_every=100000", "rl.start_seconds=300"),
            *("harness.limits.turns=2", "harness.limits.malformed=2"),
            f"reward.parts=[{{use='tests'}}, {{use='ending'}}, {{use='{folder / 'chance.py'}:Chance'}}]",
        ]
        read = recipes.load(recipe, [*settings, *overrides])
        model = small_model(folder / "model")
        os.environ["PYTHONPATH"] = os.pathsep.join([name, *filter(None, [os.environ.get("PYTHONPATH")])])
        see(name, str(PACKAGE), SCRIPT)
        try:
            with Run.open(folder / "run", recipes.to_dict(read)) as run:
                asyncio.run(train(run, read, model, work=lambda training: watched_steps(training, window)))
        finally:
            sys.setprofile(None)
        found = defaultdict(set)
        for path in folder.glob("etude.*"):
            files = path.read_text().split()
            found[path.name] = {next((each for each in FOLDERS if file.startswith(each)), file) for file in files}
        return {process: sorted(files) for process, files in sorted(found.items())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("overrides", nargs="*", help="changes to the recipe")
    parser.add_argument("--recipe", default="nano")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = trace(options.recipe, options.overrides)
    files = sorted({file for each in found.values() for file in each})
    if options.json:
        print(json.dumps(found))
        return 0
    text = PAGE.read_text()
    linked = set(re.findall(r"\]\(\.\./\.\./etude/([^)]+\.py)\)", text))
    listed = {
        file for row in text.splitlines() if row.startswith("|") for file in re.findall(r"`([\w/]+(?:\.py|/))`", row)
    }
    for file in files:
        where = ", ".join(process for process, each in found.items() if file in each)
        print(f"{'linked' if file in linked else 'listed' if file in listed else 'MISSING':8} {file:45} {where}")
    print(f"{len(files)} files in a step; {PAGE.name} links {len(linked)} and lists {len(listed)}")
    missing, gone = sorted({*files} - linked - listed), sorted((linked | listed) - {*files})
    print(f"missing there: {', '.join(missing) or 'none'}; not in the step: {', '.join(gone) or 'none'}")
    return 1 if missing or gone else 0


if __name__ == "__main__":
    sys.exit(main())

"""The flagship on one GPU, in commands of at most ten minutes: recipe `flagship`, evaluations, what to carry away.

    python benchmarks/flagship.py --work DIR --out OUT --until 560 [--ladder TASKS] [OVERRIDE ...]
    python benchmarks/flagship.py --page OUT        # writes docs/operate/flagship.md from what a run left there

The same command goes on where the last one stopped. Each step below is a command of its own with a limit of seconds;
one that fails has a second way where there is one, and the rest goes on without it. Whatever happens, OUT gets the
newest model in bfloat16, in files under 16 MiB, and one archive of metrics, evaluations, rollouts and logs.

    corpus, pretrain, mtp, extend    in the run `base`; demonstrations are made beside pretraining, in `demos`
    sft                              on these demonstrations, a fixed set
    eval-sft-*                       katas (three evaluations), the ladder's held-out tasks
    rl                               with effort, summaries, feedback and router replay
    eval-rl-*, base-evals            the same again; bits per byte of code after every stage
    fair, eval-fair-*                fine-tuning on the same demonstrations for as long as reinforcement learning

`--size tiny` tries all of it on a CPU in a few minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.core import recipe as recipes
from etude.core.run_files import checkpoints_in, read_facts
from etude.tasks.format.config import read
from etude.tasks.format.task import CONFIG, task_folders

COLLECT = 14.0  # seconds at the end of a command to write OUT
GRACE = 25.0  # seconds that a stopped command has to save
TINY = Path(__file__).with_name("flagship_tiny.toml")
# Where the shape of the recipe cannot be trained: experts without latent attention, which ran on a GPU before.
OTHER_SHAPE = ("model.shape=qwen3_moe", "model.head_dim=64")
SMALL_CORPUS = ("corpus.max_bytes=20000000",)
KATAS = "{ use = 'katas', split = 'train', levels = [1], invented = 0.7, name = 'katas', weight = %s }"
CHAINS = (
    "{ use = 'kata_chains', split = 'train', pieces = 10, prompt_styles = ['terse'], levels = [1], invented = 0.7, "
    "name = 'chains', weight = %s }"
)


@dataclass(frozen=True)
class Limits:
    """Seconds of the evaluations and how large they are; training's own seconds are the recipe's."""

    ladder_tasks: int = 60
    ladder_samples: int = 4
    ladder_demos: float = 0.4  # share of demonstrations from the ladder
    ladder_rl: float = 0.25  # of groups: a suite of a real package costs forty times a kata's tests
    evaluation: float = 150.0  # most that one may take
    evaluation_needs: float = 80.0  # left in a command, or it waits for the next
    start: float = 60.0  # most that a stage takes beside its seconds: start, evaluations, saving
    demos: float = 90.0  # most that is waited for demonstrations after pretraining
    fair_seconds: float = 0.0  # of the fair arm; 0: as long as reinforcement learning took


FULL = Limits()
SMALL = Limits(ladder_tasks=2, ladder_samples=2, evaluation_needs=5.0, start=120.0, demos=240.0, fair_seconds=10.0)


@dataclass
class State:
    """What is done: `state.json` of the work folder."""

    file: Path
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> State:
        return cls(file, json.loads(file.read_text()) if file.is_file() else {})

    def done(self, name: str) -> bool:
        return self.steps.get(name, {}).get("status") in ("done", "failed")

    def ok(self, name: str) -> bool:
        return self.steps.get(name, {}).get("status") == "done"

    def note(self, name: str, seconds: float = 0.0, **facts: Any) -> None:
        row = self.steps.setdefault(name, {"seconds": 0.0, "commands": []})
        row["seconds"] = round(row["seconds"] + seconds, 1)
        row.update(facts)
        self.file.write_text(json.dumps(self.steps, indent=1) + "\n")


class Flagship:
    def __init__(self, options: argparse.Namespace) -> None:
        self.began = time.monotonic()
        self.work, self.out, self.until = options.work.resolve(), options.out.resolve(), options.until
        self.tiny = options.size == "tiny"
        self.limits = SMALL if self.tiny else FULL
        self.logs = self.work / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)
        self.state = State.read(self.work / "state.json")
        self.ladder = options.ladder.resolve() if options.ladder else None
        self.recipe = str(TINY) if self.tiny else "flagship"
        self.settings = recipes.load(self.recipe, options.overrides)
        self.overrides = list(options.overrides)
        self.demos: subprocess.Popen[bytes] | None = None
        self.demos_began = 0.0

    @property
    def left(self) -> float:
        """Seconds of this command, without those that OUT takes at its end."""
        return self.until - COLLECT - (time.monotonic() - self.began)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.0f} s, {self.left:4.0f} left] {text}", flush=True)

    # One command

    def etude(self, name: str, words: Sequence[str], most: float) -> tuple[str, float]:
        """done, failed or stopped (it goes on with the next command), and its seconds."""
        began, log = time.monotonic(), self.logs / f"{name}.log"
        command = [sys.executable, "-m", "etude", *words]
        with log.open("ab") as file:
            file.write(f"$ etude {' '.join(words)}\n".encode())
            file.flush()
            child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment())
            # What the command's own end takes away is no fault of the stage: it goes on next time.
            ours = most >= self.left
            status = wait(child, min(most, self.left))
        spent = time.monotonic() - began
        if status == "stopped" and not ours:
            status = "failed"
        self.say(f"{name}: {status} after {spent:.0f} s")
        if status == "failed":
            print(tail(log), flush=True)
        return status, spent

    def step(
        self, name: str, ways: Sequence[Sequence[str]], most: float, needs: float, *, optional: bool = False
    ) -> bool:
        """Runs a step unless it is done; False: this command has no time for it, or it failed and is needed."""
        if self.state.done(name):
            return self.state.ok(name) or optional
        if self.left < needs:
            self.say(f"{name}: needs {needs:.0f} s; the next command goes on here")
            return False
        first = self.state.steps.get(name, {}).get("way", 0)
        for way in range(first, len(ways)):
            self.state.note(name, way=way, status="running", command=" ".join(ways[way]))
            status, spent = self.etude(name, ways[way], most)
            self.state.note(name, spent, status=status)
            if status != "failed":
                return status == "done"
            if self.left < needs and way + 1 < len(ways):
                self.state.note(name, way=way + 1, status="waits")  # "failed" would be the end of the step
                self.say(f"{name}: its second way needs {needs:.0f} s; the next command goes on here")
                return False
        return optional

    # Where models are

    def folder(self, name: str) -> Path:
        """The run of a step: of its second way, where the first failed."""
        way = self.state.steps.get("pretrain" if name == "base" else name, {}).get("way", 0)
        return self.work / (f"{name}-{way + 1}" if way else name)

    def newest(self, folder: str, stage: str) -> Path | None:
        """The newest checkpoint of this stage."""
        found = [path for name, _, path in saved(self.folder(folder)) if name == stage]
        return found[-1] if found else None

    def base_model(self) -> Path | None:
        order = [stage for stage in ("extend", "mtp") if self.state.ok(stage)]
        return next((found for stage in (*order, "pretrain") if (found := self.newest("base", stage))), None)

    def rl_model(self) -> Path | None:
        run = self.folder("rl")
        return run / "best" if (run / "best").is_dir() else self.newest("rl", "rl")

    # What each step is

    def task_words(self, section: str) -> list[str]:
        """Katas and, where its folder is given, the ladder."""
        if self.ladder is None:
            return []
        share = self.limits.ladder_demos if section == "demos" else self.limits.ladder_rl
        ladder = (
            f"{{ use = 'ladder', tasks = '{self.ladder}', split = 'train', styles = ['terse', 'plain', 'detailed'], "
            f"name = 'ladder', weight = {share} }}"
        )
        rest = 1 - share
        katas, chains = KATAS % round(0.9 * rest, 3), CHAINS % round(0.1 * rest, 3)
        return [f"{section}.tasks={{ use = 'mixture', sources = [{katas}, {chains}, {ladder}] }}"]

    def train(self) -> Iterator[bool]:
        """The steps of training, in order; each says whether the next may begin."""
        start, recipe = self.limits.start, self.settings
        base = ["--run", str(self.work / "base")]
        corpus = ["corpus", *self.words()]
        yield self.step("corpus", [[*corpus, *base], [*corpus, *SMALL_CORPUS, *base, "--fresh"]], 170, 40)
        self.start_demos()
        small = SMALL_CORPUS if self.state.steps["corpus"].get("way") else ()
        pretrain = ["pretrain", *self.words(), *small]
        ways = [[*pretrain, *base], [*pretrain, *OTHER_SHAPE, "--run", str(self.work / "base-2")]]
        yield self.step("pretrain", ways, recipe.pretrain.seconds + start, 60)
        way = OTHER_SHAPE if self.state.steps["pretrain"].get("way") else ()
        words, base = [*self.words(), *small, *way], ["--run", str(self.folder("base"))]
        yield self.step("mtp", [["mtp", *words, *base]], recipe.mtp.seconds + start, 40, optional=True)
        given = [] if self.state.ok("mtp") else [f"extend.model={self.newest('base', 'pretrain')}"]
        most = recipe.extend.seconds + 1.2 * start  # it measures needles before and after
        yield self.step("extend", [["extend", *words, *given, *base]], most, 40, optional=True)
        yield self.join_demos()
        sft = ["sft", self.recipe, *self.overrides, f"sft.model={self.base_model()}", f"sft.data={self.demo_file}"]
        yield self.step("sft", [[*sft, "--run", str(self.work / "sft")]], recipe.sft.seconds + start, 40)

    def words(self) -> list[str]:
        """Recipe and overrides of what is trained on plain text: without the packages that the ladder holds out."""
        names = held_out_packages(self.ladder) if self.ladder else []
        sources = [dict(source) for source in self.settings.corpus.sources]
        for source in sources:
            if source["use"] == "packages" and names:
                source["without"] = names
        said = f"corpus.sources={toml(sources)}"
        return [self.recipe, *self.overrides, *([said] if names else [])]

    @property
    def demo_file(self) -> Path:
        return self.work / "demos" / "demos.jsonl"

    def rl(self) -> bool:
        start = self.newest("sft", "sft")
        words = ["rl", self.recipe, *self.overrides, *self.task_words("rl"), f"rl.model={start}"]
        # The second way leaves out what was never run on a GPU: hints of a model with latent attention, and a second
        # version in the engine for evaluations. Both would fail within the first steps.
        ways = [
            [*words, "--run", str(self.work / "rl")],
            [*words, "rl.feedback.behaviours=[]", "rl.eval_every=0", "--run", str(self.work / "rl-2")],
        ]
        return self.step("rl", ways, self.settings.rl.seconds + self.limits.start, 90)

    def evaluate(self, arm: str, model: Path | None, *, ladder: bool = True) -> bool:
        """Katas and the ladder's held-out tasks; False where this command has no time for them."""
        if model is None:
            return True
        words = ["bench", str(model), "--recipe", self.recipe, *self.overrides, "--json"]
        save = ["--save", str(self.work / f"eval-{arm}-katas.json")]
        most, needs = self.limits.evaluation, self.limits.evaluation_needs
        fine = self.step(f"eval-{arm}-katas", [[*words, *save]], most, needs, optional=True)
        if not ladder or self.ladder is None or not fine:
            return fine
        tasks = f"bench.tasks={{ use = 'ladder', tasks = '{self.ladder}', split = 'held_out', again = false }}"
        there = [task for task in ladder_tasks(self.ladder) if task[1] == "held_out"]
        size = [
            f"bench.count={min(len(there), self.limits.ladder_tasks)}",
            f"bench.samples={self.limits.ladder_samples}",
        ]
        save = ["--save", str(self.work / f"eval-{arm}-ladder.json")]
        return self.step(f"eval-{arm}-ladder", [[*words, tasks, *size, *save]], most, needs, optional=True)

    def base_evals(self) -> bool:
        """Bits per byte of code after every stage."""
        models = {
            "pretrain": self.newest("base", "pretrain"),
            "extend": self.newest("base", "extend"),
            "sft": self.newest("sft", "sft"),
            "rl": self.rl_model(),
        }
        there = {name: path for name, path in models.items() if path is not None}
        (self.work / "base-evals-models.json").write_text(json.dumps({n: str(p) for n, p in there.items()}) + "\n")
        words = ["bench", "base", *map(str, there.values()), "--only", "codebase", "--json"]
        save = ["--save", str(self.work / "base-evals.json")]
        return self.step("base-evals", [[*words, *save]], 90, 25, optional=True)

    def fair(self) -> bool:
        """Fine-tuning that goes on with the same demonstrations for as long as reinforcement learning took."""
        start = self.newest("sft", "sft")
        spent = self.limits.fair_seconds or rl_seconds(self.folder("rl"))
        if not self.state.done("fair") and "seconds_asked" not in self.state.steps.get("fair", {}):
            # What this command and its evaluation leave; the page says how long it was.
            spent = min(spent, self.left - self.limits.evaluation_needs - 30)
            if spent < 8:
                return False
            self.state.note("fair", seconds_asked=round(spent), status="waits")
        asked = self.state.steps.get("fair", {}).get("seconds_asked", spent)
        words = [
            "sft",
            self.recipe,
            *self.overrides,
            f"sft.model={start}",
            f"sft.data={self.demo_file}",
            "sft.epochs=1000",
        ]
        words += [f"sft.seconds={asked}", "--run", str(self.work / "fair")]
        return self.step("fair", [words], asked + self.limits.start, 20, optional=True)

    # Demonstrations, beside pretraining

    def demo_words(self, *, ladder: bool = True) -> list[str]:
        tokenizer = self.work / "base" / "corpus" / "tokenizer"
        tasks = self.task_words("demos") if ladder else []
        words = ["demos", self.recipe, *self.overrides, *tasks, f"sft.model={tokenizer}"]
        return [*words, "--run", str(self.demo_file.parent)]

    def start_demos(self) -> None:
        if self.state.done("demos"):
            return
        words = self.demo_words()
        with (self.logs / "demos.log").open("ab") as file:
            file.write(f"$ etude {' '.join(words)}\n".encode())
            file.flush()
            self.demos = subprocess.Popen(
                [sys.executable, "-m", "etude", *words], stdout=file, stderr=subprocess.STDOUT, env=environment()
            )
        self.demos_began = time.monotonic()
        self.state.note("demos", status="running", command=" ".join(words))

    def join_demos(self) -> bool:
        """Waits for them; without the ladder's, where those do not come in time or fail."""
        if self.state.done("demos"):
            return self.state.ok("demos")
        if self.demos is not None:
            patience = min(self.limits.demos, self.left)
            status = wait(self.demos, patience)
            # They were made beside pretraining: their seconds are their own. "failed" would be the end of the step, and
            # there is a second way.
            said = "waits" if status == "failed" else status
            self.state.note("demos", time.monotonic() - self.demos_began, status=said)
            self.demos = None
            self.say(f"demos: {status}")
            if status == "done":
                return True
            print(tail(self.logs / "demos.log"), flush=True)
            if status == "stopped" and patience < self.limits.demos:
                return False
        return self.step("demos", [[*self.demo_words(ladder=False), "--fresh"]], self.limits.demos, 20)

    # All of it

    def run(self) -> None:
        for fine in self.train():
            if not fine:
                return
        sft = self.newest("sft", "sft")
        if not self.evaluate("sft", sft) or not self.rl():
            return
        if not self.evaluate("rl", self.rl_model()) or not self.base_evals():
            return
        if self.fair():
            self.evaluate("fair", self.newest("fair", "sft"), ladder=False)

    def close(self) -> None:
        if self.demos is not None and self.demos.poll() is None:
            wait(self.demos, 0.0)
            self.state.note("demos", status="stopped")

    def collect(self) -> None:
        """OUT: the newest model in bfloat16, and the archive."""
        from flagship_files import carry_model, write_archive

        for old in self.out.glob("model*.safetensors"):
            old.unlink()
        model = self.rl_model() or self.newest("sft", "sft") or self.base_model()
        keep = self.work / "carried-model"
        if model is not None:
            carry_model(model, keep)
            for shard in sorted(keep.glob("*.safetensors")):
                shutil.copy2(shard, self.out / shard.name)
        self.state.note("collect", model=str(model), seconds_in_all=round(time.monotonic() - self.began, 1))
        write_archive(self.work, self.out / "flagship.tar.gz")
        files = {path.name: round(path.stat().st_size / 2**20, 2) for path in sorted(self.out.iterdir())}
        self.say(f"in {self.out}, MiB: {files}")


# Pieces


def environment() -> dict[str, str]:
    """One thread for each of the many processes, but the corpus is encoded by all cores."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def wait(child: subprocess.Popen[bytes], most: float) -> str:
    """done, failed, or stopped: asked to save and stop, and killed if it does not."""
    try:
        return "failed" if child.wait(max(0.0, most)) else "done"
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    return "stopped"


def tail(log: Path, lines: int = 12) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(f"    {line[:300]}" for line in log.read_text(errors="replace").splitlines()[-lines:])
    return ""


def toml(value: Any) -> str:
    """A value on one line, as an override has it."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {toml(item)}' for key, item in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)


def saved(run: Path) -> list[tuple[str, int, Path]]:
    return checkpoints_in(run) if (run / "run.json").is_file() else []


def rl_seconds(run: Path) -> float:
    with contextlib.suppress(OSError, KeyError, ValueError):
        return float(read_facts(run)["stages"]["rl"]["facts"]["seconds"])
    return 0.0


def ladder_tasks(tasks: Path) -> list[tuple[str, str]]:
    """(package, split) of each of the ladder's first tasks."""
    found = []
    for path in task_folders(tasks):
        _, facts = read((path / CONFIG).read_bytes(), str(path / CONFIG))
        if facts.rung == 1:
            found.append((path.parent.name, facts.split or "train"))
    return found


def held_out_packages(tasks: Path) -> list[str]:
    """Names of the packages whose tasks are held out, as their folders in site-packages are called."""
    return sorted({package.lower().replace("-", "_") for package, split in ladder_tasks(tasks) if split == "held_out"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/flagship"), help="folder of all runs and the state")
    parser.add_argument("--out", type=Path, default=Path("runs/flagship-out"), help="what is to be carried away")
    parser.add_argument("--until", type=float, default=560.0, help="seconds that this command may take")
    parser.add_argument("--ladder", type=Path, help="folder of the ladder's tasks; without it katas alone")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--page", type=Path, metavar="OUT", help="write the page from this folder, and run nothing")
    parser.add_argument("--note", action="append", default=[], help="a line for the page's end, known from elsewhere")
    parser.add_argument("--to", type=Path, default=Path("docs/operate/flagship.md"), help="where --page writes it")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    if options.page:
        from flagship_page import write_page

        return write_page(options.page, options.to, options.note)
    flagship = Flagship(options)
    stopped: Callable[..., None] = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
    signal.signal(signal.SIGTERM, stopped)
    try:
        flagship.run()
    except KeyboardInterrupt:
        flagship.say("stopped")
    finally:
        flagship.close()
        flagship.collect()
    shown = {name: {k: row[k] for k in ("status", "seconds") if k in row} for name, row in flagship.state.steps.items()}
    print(json.dumps(shown))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

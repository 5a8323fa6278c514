"""The flagship on one GPU, in commands of at most ten minutes: recipe `flagship`, evaluations, what to carry away.

    python benchmarks/flagship.py --work DIR --out OUT --until 560 [--ladder TASKS] [--demos FILE] [OVERRIDE ...]
    python benchmarks/flagship.py --page OUT        # writes docs/operate/flagship.md from what a run left there

The same command goes on where the last one stopped. Each step below is a command of its own with a limit of seconds;
one that fails has a second way where there is one, and the rest goes on without it. Whatever happens, OUT gets the
newest model in bfloat16, in files under 16 MiB, and one archive of metrics, evaluations, rollouts and logs.

    corpus, pretrain, mtp, extend    in the run `base`; demonstrations are made beside pretraining, in `demos`
    sft                              on these demonstrations, a fixed set, with pretraining's text beside them
    eval-sft-*                       katas (three evaluations), the ladder's held-out tasks
    rl                               with effort, summaries, feedback and router replay, for the seconds that are left
    eval-rl-*, base-evals            the same again; bits per byte of code after every stage
    fair, eval-fair-*                fine-tuning on the same demonstrations for as long as reinforcement learning

`--size tiny` tries all of it on a CPU in a few minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.flagship_rate import lower_rate
from benchmarks.flagship_state import (
    State,
    environment,
    held_out_packages,
    ladder_tasks,
    package_folders,
    rl_seconds,
    saved,
    tail,
    toml,
    wait,
)
from etude.core import recipe as recipes

COLLECT = 14.0  # seconds at the end of a command to write OUT
TINY = Path(__file__).with_name("flagship_tiny.toml")
# Where the shape of the recipe cannot be trained: experts without latent attention, which ran on a GPU before.
OTHER_SHAPE = ("model.shape=qwen3_moe", "model.head_dim=64")
SMALL_CORPUS = ("corpus.max_bytes=20000000",)
READ_PACKAGES = ("packages", "mends")  # sources that read what is installed
STYLES = ("terse", "plain", "detailed")


@dataclass(frozen=True)
class Limits:
    """Seconds of the evaluations and how large they are; training's own seconds are the recipe's."""

    ladder_tasks: int = 200
    ladder_samples: int = 4
    ladder_demos: float = 0.08  # share of demonstrations from the ladder
    apart_demos: int = 200  # of the ladder, where it is made beside pretraining
    ladder_rl: float = 0.05  # of groups: a real suite costs forty times a kata; mends are the practice
    evaluation: float = 240.0  # most that one may take
    evaluation_needs: float = 60.0  # left in a command, or it waits for the next
    ladder_needs: float = 100.0  # the same of the ladder, whose suites are slow
    least_rl: float = 120.0  # seconds of reinforcement learning that are worth a start
    after_rl: float = 200.0  # seconds that are kept for the evaluations behind it, until those before have been timed
    start: float = 60.0  # most that a stage takes beside its seconds: start, evaluations, saving
    demos: float = 90.0  # most that is waited for demonstrations after pretraining
    fair_seconds: float = 0.0  # of the fair arm; 0: as long as reinforcement learning took


FULL = Limits()
SMALL = Limits(
    ladder_tasks=2,
    ladder_samples=2,
    apart_demos=3,
    evaluation_needs=5.0,
    ladder_needs=5.0,
    least_rl=10.0,
    after_rl=10.0,
    start=120.0,
    demos=240.0,
    fair_seconds=10.0,
)


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
        self.held_out = package_folders(options.held_out.split(",")) if options.held_out else []
        self.given_demos = options.demos.resolve() if options.demos else None
        self.recipe = str(TINY) if self.tiny else "flagship"
        self.settings = recipes.load(self.recipe, options.overrides)
        self.overrides = list(options.overrides)
        self.beside: dict[str, tuple[subprocess.Popen[bytes], float]] = {}  # demonstrations, and when they were begun

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
        """The last one, whatever evaluations on held-out tasks beside training said: nothing is chosen by them."""
        return self.newest("rl", "rl")

    # What each step is

    def task_words(self, section: str) -> list[str]:
        """The recipe's sources and, where there are some, the ladder's tasks; held-out packages are left out."""
        if self.ladder is None:
            return []
        sources = self.without(getattr(self.settings, section).tasks["sources"])
        if (section == "rl" or not self.held_out) and self.ladder_there("train"):
            share = self.limits.ladder_demos if section == "demos" else self.limits.ladder_rl
            total = sum(source["weight"] for source in sources)
            sources = [source | {"weight": round((1 - share) * source["weight"] / total, 4)} for source in sources]
            sources.append(self.ladder_source() | {"weight": share})
        return [f"{section}.tasks={toml({'use': 'mixture', 'sources': sources})}"]

    def ladder_source(self) -> dict[str, Any]:
        return {"use": "ladder", "tasks": str(self.ladder), "split": "train", "styles": list(STYLES)}

    def ladder_there(self, split: str) -> int:
        """How many of the ladder's tasks there are by now."""
        found = ladder_tasks(self.ladder) if self.ladder is not None and self.ladder.is_dir() else []
        return sum(side == split for _, side in found)

    def without(self, sources: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Sources that read installed packages, without those that the ladder holds out."""
        names = self.held_out or (held_out_packages(self.ladder) if self.ladder else [])
        return [source | ({"without": names} if source["use"] in READ_PACKAGES else {}) for source in sources]

    def train(self) -> Iterator[bool]:
        """The steps of training, in order; each says whether the next may begin."""
        start, recipe = self.limits.start, self.settings
        base = ["--run", str(self.work / "base")]
        corpus = ["corpus", *self.words()]
        yield self.step("corpus", [[*corpus, *base], [*corpus, *SMALL_CORPUS, *base, "--fresh"]], 170, 40)
        self.start_demos("demos", self.demo_words())
        small = SMALL_CORPUS if self.state.steps["corpus"].get("way") else ()
        pretrain = ["pretrain", *self.words(), *small]
        ways = [[*pretrain, *base], [*pretrain, *OTHER_SHAPE, "--run", str(self.work / "base-2")]]
        yield self.step("pretrain", ways, recipe.pretrain.seconds + start, 60)
        if self.held_out and (count := self.ladder_there("train")):  # it was made meanwhile
            self.start_demos("demos-ladder", self.ladder_demo_words(count))
        way = OTHER_SHAPE if self.state.steps["pretrain"].get("way") else ()
        words, base = [*self.words(), *small, *way], ["--run", str(self.folder("base"))]
        yield self.step("mtp", [["mtp", *words, *base]], recipe.mtp.seconds + start, 40, optional=True)
        given = [] if self.state.ok("mtp") else [f"extend.model={self.newest('base', 'pretrain')}"]
        most = recipe.extend.seconds + 1.2 * start  # it measures needles before and after
        yield self.step("extend", [["extend", *words, *given, *base]], most, 40, optional=True)
        yield self.join_demos()
        self.join_ladder_demos()
        sft = ["sft", *self.sft_words(), f"sft.model={self.base_model()}"]
        yield self.step("sft", [[*sft, "--run", str(self.work / "sft")]], recipe.sft.seconds + start, 40)

    def words(self) -> list[str]:
        """Recipe and overrides of what is trained on plain text: without the packages that the ladder holds out."""
        if self.ladder is None:
            return [self.recipe, *self.overrides]
        sources = self.without([dict(source) for source in self.settings.corpus.sources])
        return [self.recipe, *self.overrides, f"corpus.sources={toml(sources)}"]

    def sft_words(self) -> list[str]:
        """Recipe and overrides of fine-tuning: the demonstrations, and the base's text beside them."""
        text = self.folder("base") / "corpus"
        return [self.recipe, *self.overrides, f"sft.data={self.learnt_file}", f"sft.text={text}"]

    @property
    def demo_file(self) -> Path:
        return self.given_demos or self.work / "demos" / "demos.jsonl"

    @property
    def learnt_file(self) -> Path:
        """All demonstrations: those of the ladder too, where they were made apart."""
        more, joined = self.work / "demos-ladder" / "demos.jsonl", self.work / "demos-all.jsonl"
        if not more.is_file():
            return self.demo_file
        if not joined.is_file():
            joined.write_bytes(self.demo_file.read_bytes() + more.read_bytes())
        return joined

    def rl_budget(self) -> float:
        """Seconds of reinforcement learning: what this command leaves when the evaluations behind it are done."""
        timed = [self.state.steps.get(f"eval-sft-{name}", {}) for name in ("katas", "ladder")]
        known = sum(row.get("seconds", 0.0) for row in timed) if all(map(bool, timed)) else 0.0
        after = 1.15 * known + 30 if known and not self.tiny else self.limits.after_rl
        return min(self.settings.rl.seconds, self.left - after - self.limits.start / 2)

    def rl(self) -> bool:
        start = self.newest("sft", "sft")
        if "seconds_asked" not in self.state.steps.get("rl", {}):
            if (asked := round(self.rl_budget())) < self.limits.least_rl:
                self.say(f"rl: {asked} s are left for it; the next command goes on here")
                return False
            self.state.note("rl", seconds_asked=asked, status="waits")
        asked = self.state.steps["rl"]["seconds_asked"]
        words = ["rl", self.recipe, *self.overrides, *self.task_words("rl"), f"rl.model={start}", f"rl.seconds={asked}"]
        # The second way leaves out what was never run on a GPU: hints of a model with latent attention, and a second
        # version in the engine for evaluations. Both would fail within the first steps.
        ways = [
            [*words, "--run", str(self.work / "rl")],
            [*words, "rl.feedback.behaviours=[]", "rl.eval_every=0", "--run", str(self.work / "rl-2")],
        ]
        over = threading.Event()
        rate = self.settings.rl.optim.lr
        annealing = threading.Thread(
            target=lower_rate, args=(lambda: self.folder("rl"), rate, asked, over, self.say), daemon=True
        )
        annealing.start()
        try:
            return self.step("rl", ways, asked + self.limits.start, min(90.0, asked))
        finally:
            over.set()
            annealing.join()

    def evaluate_katas(self, arm: str, model: Path | None) -> bool:
        """Held-out katas; False where this command has no time for them."""
        if model is None:
            return True
        words = ["bench", str(model), "--recipe", self.recipe, *self.overrides, "--json"]
        save = ["--save", str(self.work / f"eval-{arm}-katas.json")]
        most, needs = self.limits.evaluation, self.limits.evaluation_needs
        return self.step(f"eval-{arm}-katas", [[*words, *save]], most, needs, optional=True)

    def evaluate_ladder(self, arm: str, model: Path | None) -> bool:
        """The ladder's held-out tasks, likewise."""
        there = self.ladder_there("held_out")
        if model is None or not there:
            return True
        words = ["bench", str(model), "--recipe", self.recipe, *self.overrides, "--json"]
        tasks = f"bench.tasks={{ use = 'ladder', tasks = '{self.ladder}', split = 'held_out', again = false }}"
        size = [
            f"bench.count={min(there, self.limits.ladder_tasks)}",
            f"bench.samples={self.limits.ladder_samples}",
            # Fewer at once than katas: suites of many rollouts on few cores would end by the limit of seconds.
            f"bench.concurrency={4 * (os.cpu_count() or 1)}",
        ]
        save = ["--save", str(self.work / f"eval-{arm}-ladder.json")]
        most, needs = self.limits.evaluation, self.limits.ladder_needs
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
        words = ["sft", *self.sft_words(), f"sft.model={start}", "sft.epochs=1000"]
        words += [f"sft.seconds={asked}", "--run", str(self.work / "fair")]
        return self.step("fair", [words], asked + self.limits.start, 20, optional=True)

    # Demonstrations, beside pretraining

    def demo_words(self, *, ladder: bool = True) -> list[str]:
        tasks = self.task_words("demos") if ladder else []
        return ["demos", self.recipe, *self.overrides, *tasks, *self.demo_run("demos")]

    def ladder_demo_words(self, count: int) -> list[str]:
        tasks = [f"demos.tasks={toml(self.ladder_source())}", f"demos.count={min(2 * count, self.limits.apart_demos)}"]
        return ["demos", self.recipe, *self.overrides, *tasks, *self.demo_run("demos-ladder")]

    def demo_run(self, name: str) -> list[str]:
        tokenizer = self.work / "base" / "corpus" / "tokenizer"
        return [f"sft.model={tokenizer}", "--run", str(self.work / name)]

    def start_demos(self, name: str, words: Sequence[str]) -> None:
        if name == "demos" and self.given_demos is not None and not self.state.done(name):
            self.state.note(name, status="done", given=str(self.given_demos))
        if self.state.done(name):
            return
        with (self.logs / f"{name}.log").open("ab") as file:
            file.write(f"$ etude {' '.join(words)}\n".encode())
            file.flush()
            # Behind what uses the GPU and the arms of a study.
            command = ["nice", "-n", "5", sys.executable, "-m", "etude", *words]
            child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment())
        self.beside[name] = child, time.monotonic()
        self.state.note(name, status="running", command=" ".join(words))

    def join(self, name: str, patience: float) -> str:
        """How a process beside the others ended; its seconds are its own."""
        child, began = self.beside.pop(name)
        status = wait(child, patience)
        # "failed" would be the end of the step, and there is a second way.
        self.state.note(name, time.monotonic() - began, status="waits" if status == "failed" else status)
        self.say(f"{name}: {status}")
        if status != "done":
            print(tail(self.logs / f"{name}.log"), flush=True)
        return status

    def join_demos(self) -> bool:
        """Waits for them; without the ladder's, where those do not come in time or fail."""
        if self.state.done("demos"):
            return self.state.ok("demos")
        if "demos" in self.beside:
            patience = min(self.limits.demos, self.left)
            status = self.join("demos", patience)
            if status == "done":
                return True
            if status == "stopped" and patience < self.limits.demos:
                return False
        return self.step("demos", [[*self.demo_words(ladder=False), "--fresh"]], self.limits.demos, 20)

    def join_ladder_demos(self) -> None:
        """Those that were made apart; fine-tuning goes on without them where they fail."""
        if "demos-ladder" in self.beside:
            self.join("demos-ladder", min(self.limits.demos, self.left))

    # All of it

    def run(self) -> None:
        for fine in self.train():
            if not fine:
                return
        sft = self.newest("sft", "sft")
        if not self.evaluate_katas("sft", sft):
            return
        # The next command does what this one has no time for; reinforcement learning does not wait for it twice.
        self.evaluate_ladder("sft", sft)
        if not self.rl():
            return
        trained = self.rl_model()
        if not self.evaluate_katas("rl", trained) or not self.base_evals():
            return
        if not self.evaluate_ladder("rl", trained) or not self.evaluate_ladder("sft", sft):
            return
        if self.fair():
            self.evaluate_katas("fair", self.newest("fair", "sft"))

    def close(self) -> None:
        for name, (child, _) in self.beside.items():
            if child.poll() is None:
                wait(child, 0.0)
                self.state.note(name, status="stopped")

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/flagship"), help="folder of all runs and the state")
    parser.add_argument("--out", type=Path, default=Path("runs/flagship-out"), help="what is to be carried away")
    parser.add_argument("--until", type=float, default=560.0, help="seconds that this command may take")
    parser.add_argument("--ladder", type=Path, help="folder of the ladder's tasks; without it katas alone")
    parser.add_argument("--held-out", help="packages that are held out, where the ladder's tasks are made meanwhile")
    parser.add_argument("--demos", type=Path, help="file of demonstrations that were made before; else they are made")
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

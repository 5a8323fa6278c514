"""Runs every command of README and docs, or dry-runs it where it needs a GPU, a network or hours.

    python benchmarks/doors/run_commands.py [--only TEXT] [--folder FOLDER] [--json FILE]

In a scratch folder lie stand-ins for what the pages assume: a toy that went the whole way in `runs/quickstart`, the
same model as a folder, katas as tasks, a small repository, a server. Words of a command that name something of the
reader's (`TASK`, `REPO`, `attrs`, `https://host/v1`) are replaced by those. Each command is then one of

    run       run for real; `smaller` where numbers in it were made smaller (steps, counts), `with its page` by
              run_pages.py, where commands build on each other
    dry-run   `--dry-run` of a stage, `make -n`, `--help` of a program in benchmarks/ that takes hours or a GPU
    named     a mention inside a sentence, no whole command (`etude tasks make`): it is there
    checked   an installation or a line of the shell: the extra exists, the shell parses it
    not run   with the reason

and a command that ends with an error is a failure. Commands of `etude` run in processes forked from one that has
loaded torch, which spares each of them some seconds. About 12 minutes of processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.doors import hosted_model
from benchmarks.doors.page_commands import (
    ROOT,
    Command,
    Incomplete,
    all_commands,
    context_of,
    is_mention,
    named,
    words_of,
)
from benchmarks.doors.preparations import free_port, prepare
from benchmarks.doors.run_pages import PAGES as TRANSCRIPTS
from benchmarks.doors.run_pages import page_commands as transcript
from benchmarks.doors.small_repository import write_repository
from benchmarks.doors.stand_ins import FEWER, MORE, REAL_STAGES, STAGES, planned, stand_ins

State = Literal["run", "run, smaller", "run with its page", "dry-run", "named", "checked", "not run", "failed"]
SECONDS = 600.0  # for one command
SHELL_PROGRAMS = ("source", "export", "ray", "curl", "tensorboard", "hf", "kubectl", "docker")
TOKEN = "0123456789abcdef0123456789abcdef"
TOY = """
extends = "nano"
run = { threads = 1 }
model = { depth = 2 }
tokens = { vocab_size = 400, train_bytes = 60_000 }
pretrain = { steps = 8, eval_every = 2, private = "shop" }
demos = { count = 6 }
sft = { epochs = 1 }
rl = { steps = 5, groups = 2, group = 2, concurrency = 4, eval_every = 0, seconds = 60.0 }
bench = { count = 4, samples = 2, unseen_count = 2 }

[corpus]
sources = [{ use = "stdlib", weight = 0.3 }, { use = "katas", weight = 0.7, count = 150, invented = 0.7 }]
max_bytes = 120_000
"""
WITH_THEIR_PAGE = {line for page in TRANSCRIPTS for line in transcript(page)}
RULE = """from etude.audit.base import Detector


class Mine(Detector):
    def look(self, evidence):
        yield from ()
"""


@dataclass(frozen=True)
class Outcome:
    command: Command
    state: State
    how: str  # the command as it was run, or why it was not
    seconds: float = 0.0
    said: str = ""


class World:
    """The scratch folder and what runs beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"ETUDE_STORE": str(folder / "store"), "OMP_NUM_THREADS": "1", "COLUMNS": "100", "MY_KEY": "key"}
        self.env |= {"ETUDE_SANDBOX_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1", "ETUDE_API_KEY": ""}
        self.env |= {"WANDB_MODE": "offline"}
        self.names = {name: str(free_port()) for name in ("sandbox_port", "serve_port", "hosted_port")}
        for name, port, model in (("served", "serve_port", "my-model"), ("hosted", "hosted_port", hosted_model.NAME)):
            self.names[name] = f"openai:http://127.0.0.1:{self.names[port]}/v1?model={model}"
        self.prepared: dict[int, str] = {}  # what was made for some commands, and what was lacking for it
        self.beside: list[int] = []  # processes, each of which leads a group
        self.done: dict[str, Outcome] = {}  # by the command as it is run

    def etude(self, *words: str, stdin: str = "", seconds: float = SECONDS) -> tuple[int, str]:
        """Runs a command of ours; its exit code and its output."""
        from etude.cli.main import main

        # Servers get Ctrl-C; one that lends its engine to a run has to join that before.
        interrupt = (45.0 if "--lend" in words else 15.0) if "serve" in words[:2] else 0.0
        return self._forked(main, ["etude", *words], self.folder, stdin, seconds, interrupt)

    def start(self, *words: str) -> None:
        """A command of ours that goes on beside the others."""
        from etude.cli.main import main

        self.go_on(main, ["etude", *words])

    def go_on(self, work: Callable[[], None], argv: list[str]) -> None:
        self.beside.append(pid := os.fork())
        if not pid:
            nothing = os.open(os.devnull, os.O_RDWR)
            self._become(work, argv, self.folder, nothing, nothing)

    def end(self) -> None:
        for pid in self.beside:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGTERM)
            os.waitpid(pid, 0)

    def python(self, *words: str) -> tuple[int, str]:
        """Runs a Python program of the checkout: a file, or `-m` and a module."""

        def work() -> None:
            if words[0] == "-m":
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str((ROOT / words[0]).parent))
                runpy.run_path(str(ROOT / words[0]), run_name="__main__")

        return self._forked(work, [*words[words[0] == "-m" :]], ROOT, "", SECONDS)

    def _forked(
        self,
        work: Callable[[], None],
        argv: list[str],
        folder: Path,
        stdin: str,
        seconds: float,
        interrupt: float = 0.0,
    ) -> tuple[int, str]:
        """In a fork of this process, which has loaded torch."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as given:
            given.write(stdin.encode())
            given.seek(0)
            pid = os.fork()
            if not pid:
                self._become(work, argv, folder, out.fileno(), given.fileno())
            code = _wait(pid, seconds, interrupt)
            out.seek(0)
            return code, out.read().decode("utf-8", "replace")

    def _become(self, work: Callable[[], None], argv: list[str], folder: Path, out: int, given: int) -> None:
        """What the fork does: never returns."""
        code = 1
        try:
            os.setsid()
            os.chdir(folder)
            os.environ |= self.env
            os.dup2(given, 0)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, 1) for n, mode in ((0, "r"), (1, "w"), (2, "w")))
            sys.argv = argv
            work()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def build(self) -> None:
        """The stand-ins; what is there already is kept."""
        self.folder.mkdir(parents=True, exist_ok=True)
        here = self.folder
        for made in ("out", "katas", "new", "OUT", "saved", "tasks/again"):  # by commands of an earlier time
            shutil.rmtree(here / made, ignore_errors=True)
        if not (here / "shop").exists():
            write_repository(here / "shop")
        if not (here / "history").exists():  # a file that changed several times
            git = ["git", "-C", str(here / "history"), "-c", "user.name=a", "-c", "user.email=a@example.org"]
            subprocess.run(["git", "init", "-q", str(here / "history")], check=True, timeout=60)
            for number in range(4):
                (here / "history/a.py").write_text(f"def f(x):\n    return x + {number}\n")
                subprocess.run([*git, "add", "-A"], check=True, timeout=60)
                subprocess.run([*git, "commit", "-q", "-m", f"Change {number}"], check=True, timeout=60)
        (here / "toy.toml").write_text(TOY)
        mine = (ROOT / "examples/own_algorithm.py").read_text()
        (here / "mine.py").write_text(f"{mine}\n\nMine = Rare\n")
        (here / "rule.py").write_text(RULE)
        (here / "mine.toml").write_text(TOY)
        shutil.copytree(ROOT / "examples", here / "examples", dirs_exist_ok=True)
        if not (here / "runs/quickstart/report.html").exists():
            self.must("run", "toy.toml", "--run", "runs/quickstart", seconds=900.0)
        if not (here / "my-model").exists():
            shutil.copytree(sorted((here / "runs/quickstart/checkpoints").glob("sft-*"))[-1], here / "my-model")
        for split in ("train", "held_out"):
            if not (here / f"{split}.done").exists():
                self.must("tasks", "katas", "tasks/shop", "--count", "3", "--levels", "1", "--split", split)
                (here / f"{split}.done").touch()
        self.names["task"] = f"tasks/shop/{min(p.name for p in (here / 'tasks/shop').iterdir() if p.is_dir())}"
        self.must("rollout", self.names["task"], "--policy", "reference", "--save", "saved")
        shutil.copytree(here / "tasks/shop", here / "tasks/again")
        if not (here / "workspace").exists():
            shutil.copytree(here / self.names["task"] / "environment" / "workspace", here / "workspace")
            shutil.copytree(here / self.names["task"] / "solution" / "files", here / "workspace", dirs_exist_ok=True)
        found = sorted(path.parent for path in (here / "saved").rglob("trajectory.json*"))
        self.names["rollout"] = str(found[0].relative_to(here)) if found else "saved"
        shutil.copytree(ROOT / "studies", here / "studies", dirs_exist_ok=True)
        page = (ROOT / "docs/rooms/corpus.md").read_text()
        (here / "notebooks.py").write_text(page.split("```python\n# notebooks.py\n")[1].split("```")[0])
        (here / "notebooks").mkdir(exist_ok=True)
        shutil.copytree(ROOT / "benchmarks/scale", here / "benchmarks/scale", dirs_exist_ok=True)
        if not (here / "runs/nano-base").exists():
            shutil.copytree(here / "runs/quickstart", here / "runs/nano-base")
        asked = {"question": "Which day?", "answer": "today", "wrong": ["never"], "source": "x", "date": "2026-11-01"}
        (here / "questions.jsonl").write_text(f"{json.dumps(asked)}\n" * 3)
        rows = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": f"hello {n}"}]}
                for n in range(8)]  # fmt: skip
        (here / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def must(self, *words: str, seconds: float = SECONDS) -> None:
        code, said = self.etude(*words, seconds=seconds)
        if code:
            sys.exit(f"{said}\nthe stand-ins could not be made: etude {shlex.join(words)} ended with {code}")


def _wait(pid: int, seconds: float, interrupt: float) -> int:
    """The exit code of a child; 124 where it took too long. A server gets Ctrl-C after a while, and has to end well."""
    until, asked = time.monotonic() + (interrupt or seconds), False
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return 0 if asked and code in (0, 130, -signal.SIGINT) else (1 if interrupt and not asked else code)
        if time.monotonic() > until:
            if asked or not interrupt:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return 124
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
            asked, until = True, time.monotonic() + 60.0
        time.sleep(0.02)


def decide(command: Command, world: World) -> Callable[[], Outcome]:
    """What is to be done with a command."""
    text = command.text

    def over(state: State, how: str, seconds: float = 0.0, said: str = "") -> Callable[[], Outcome]:
        return lambda: Outcome(command, state, how, seconds, said)

    if text in WITH_THEIR_PAGE:
        return over("run with its page", "python benchmarks/doors/run_pages.py")
    words = words_of(text)
    program = re.sub(r"^(?:[A-Z_]+=\S+ )*", "", text).split()[0]
    if lacking := prepare(text, world) if words is not None else "":
        return over("not run", lacking)
    if text == "etude --install-completion":
        return lambda: _completion(command, world)
    if program.endswith("pip") or program in SHELL_PROGRAMS or "&&" in text:
        return lambda: _check_shell(command)
    if program == "pytest":
        collect = [sys.executable, "-m", "pytest", "--collect-only", "-n", "0", *(words or [])]
        return lambda: _subprocess(command, collect, ROOT, "dry-run")
    if program == "make":
        return lambda: _subprocess(command, ["make", "-n", *(words or [])], ROOT, "dry-run")
    if program == "torchrun":
        return lambda: _torchrun(command, words or [], world)
    if program.startswith("python"):
        return lambda: _program(command, words, world)
    return lambda: _etude(command, words, world)


def _torchrun(command: Command, words: list[str], world: World) -> Outcome:
    """Both machines of the page are this one, with one process each."""
    line = shlex.join(words).replace("--nproc-per-node 8", "--nproc-per-node 1").replace("ranks=16", "ranks=2")
    line = line.replace("HOST:29500", f"127.0.0.1:{free_port()}").replace("RECIPE.toml", "toy.toml")
    argv = [sys.executable, "-m", "torch.distributed.run", *shlex.split(line), "pretrain.steps=2"]
    with ThreadPoolExecutor() as machines:
        found = [*machines.map(lambda _: _subprocess(command, argv, world.folder, "run, smaller"), range(2))]
    return max(found, key=lambda outcome: outcome.state == "failed")


def _completion(command: Command, world: World) -> Outcome:
    """In a home of its own; the shell is found by the process that asks."""
    (home := world.folder / "home").mkdir(exist_ok=True)
    program = shlex.quote(str(Path(sys.executable).with_name("etude")))
    asked = ["env", f"HOME={home}", "bash", "-c", f"{program} --install-completion; exit $?"]
    outcome = _subprocess(command, asked, world.folder, "run")
    written = (home / ".bash_completions/etude.sh").exists()
    return outcome if written else replace(outcome, state="failed")


def _etude(command: Command, words: list[str] | None, world: World) -> Outcome:
    try:
        if words is None:
            named(command.text.split()[1:])
            return Outcome(command, "named", "the command is there")
        given = stand_ins(words, world.names)
        try:
            if given == ["bench"]:
                raise Incomplete("a model is missing")
            context_of(given)
        except Incomplete as lacking:
            named(words)
            if not is_mention(words):
                return Outcome(command, "failed", "parsed", said=str(lacking))
            return Outcome(command, "named", "the command is there")
    except ValueError as error:
        return Outcome(command, "failed", "parsed", said=str(error))
    state: State = "run"
    if given[0] in STAGES and "--dry-run" not in given and not {"--rollouts-only", "--train-only"} & {*given}:
        found = next((more for pattern, more in REAL_STAGES if re.search(pattern, command.text)), None)
        if found:
            given += shlex.split(found) + ([] if "--run" in given else ["--run", f"new/{len(world.done)}"])
        else:
            given = planned(given)
        state = "run, smaller" if found else "dry-run"
    for pattern, more in MORE:
        if re.search(pattern, command.text):
            given, state = [*given, *shlex.split(more)], "run, smaller"
    if {"--rollouts-only", "--train-only"} & {*given}:  # really written, and later pages plan runs of these names
        given = [re.sub(r"^runs/", "new/", word) for word in given]
    line = shlex.join(given)
    for pattern, fewer in FEWER:
        line, times = re.subn(pattern, fewer, line)
        state = "run, smaller" if times and state == "run" else state
    if given[:2] == ["tasks", "make"] and "--count" not in given:
        line, state = f"{line} --count 1", "run, smaller"
    if line in world.done:
        return replace(world.done[line], command=command)
    given = shlex.split(line)
    if "--out" in given:  # a new folder for each
        given[given.index("--out") + 1] = f"out/{len(world.done)}"
    began = time.monotonic()
    code, said = world.etude(*given, stdin="hello\n")
    how = f"etude {line}" + (f" (ended with {code})" if code else "")
    if code == 1 and (given[0] == "plan" or given[:2] == ["sandbox", "bench"]):
        code = 0  # its answer: no layout fits, or a busy machine is slower than the bars
    outcome = Outcome(command, "failed" if code else state, how, time.monotonic() - began, said[-1500:])
    world.done[line] = outcome
    return outcome


def _program(command: Command, words: list[str] | None, world: World) -> Outcome:
    if not words:
        return Outcome(command, "named", "a part of a sentence")
    if words[:2] == ["-m", "venv"]:
        return Outcome(command, "checked", "makes an environment")
    target = words[1] if words[0] == "-m" else words[0]
    if target.endswith("small_repository.py"):
        code, said = world.python(words[0], str(world.folder / "again"))
        shutil.rmtree(world.folder / "again", ignore_errors=True)
        return Outcome(command, "failed" if code else "run", f"python {shlex.join(words)}", 0.0, said)
    if target.endswith("run_many.py"):
        code, said = world.python(*words, "--list")
        return Outcome(
            command, "failed" if code else "dry-run", f"python {shlex.join(words)} --list", 0.0, said[-1500:]
        )
    call = ["-m", target] if words[0] == "-m" else [target]
    # A program of several parts has one help for each.
    parts = [word for word in words[len(call) :] if re.fullmatch(r"[a-z]+", word)]
    began = time.monotonic()
    for more in ([*parts[:1], "--help"], ["--help"]):
        code, said = world.python(*call, *more)
        if not code:
            break
    asked = {word.partition("=")[0] for word in words if word.startswith("--")}
    lacking = sorted(option for option in asked if option not in said)
    how = f"python {shlex.join([*call, *more])}" + (f" (ended with {code})" if code else "")
    if lacking and not code:
        said = f"its help has no {', '.join(lacking)}"
    return Outcome(command, "failed" if code or lacking else "dry-run", how, time.monotonic() - began, said[-1500:])


def _subprocess(command: Command, argv: list[str], cwd: Path, state: State) -> Outcome:
    began = time.monotonic()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Outcome(command, "failed", shlex.join(argv), SECONDS, "took too long")
    said = done.stdout + done.stderr
    how = " ".join(["python" if word == sys.executable else word.removeprefix(f"{ROOT}/") for word in argv])
    return Outcome(command, "failed" if done.returncode else state, how, time.monotonic() - began, said[-20_000:])


def _check_shell(command: Command) -> Outcome:
    """Installs and settings of a shell: its syntax, and that an extra is one of this package."""
    text = command.text.replace("...", "value")
    parsed = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True, timeout=20)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extras = {name.strip() for found in re.findall(r"(?:etude|\.)\[([\w,]+)\]", text) for name in found.split(",")}
    wrong = parsed.stderr or ", ".join(sorted(extras - {*known}))
    return Outcome(command, "failed" if wrong else "checked", "syntax, and names of extras", said=wrong)


def report(outcomes: list[Outcome]) -> str:
    counts = Counter(outcome.state for outcome in outcomes)
    lines = [f"{len(outcomes)} commands: " + ", ".join(f"{number} {state}" for state, number in counts.most_common())]
    for outcome in outcomes:
        if outcome.state in ("not run", "failed"):
            lines.append(f"{outcome.state}: {outcome.command.page}: {outcome.command.text}\n    {outcome.how}")
            lines += [f"    {line}" for line in outcome.said.strip().splitlines()[-6:]] * (outcome.state == "failed")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", help="commands, or pages, that have one of these texts in them: docs/start,etude rl"
    )
    parser.add_argument("--folder", type=Path, help="a scratch folder that is kept, and used again")
    parser.add_argument("--json", type=Path, help="file for every command and what came of it")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        world = World((options.folder or Path(made)).absolute())
        world.build()
        world.start("sandbox", "serve", "--listen", f"127.0.0.1:{world.names['sandbox_port']}")
        world.start("serve", "my-model", "--port", world.names["serve_port"])
        world.go_on(lambda: hosted_model.serve(int(world.names["hosted_port"])), ["hosted model"])
        done: dict[str, Outcome] = {}
        outcomes = []
        # Those that take minutes come last.
        for command in sorted(all_commands(), key=lambda command: "tasks make" in command.text):
            if not any(part in f"{command.page} {command.text}" for part in options.only.split(",")):
                continue
            if (before := done.get(command.text)) is None:
                before = done[command.text] = decide(command, world)()
                print(f"{before.state:13}{before.seconds:6.1f} s  {command.page}: {command.text[:110]}", flush=True)
                if before.state == "failed":
                    print(f"    {before.how}\n    {before.said.strip()[-400:]}", flush=True)
            outcomes.append(Outcome(command, before.state, before.how, before.seconds, before.said))
        world.end()
    print(report(outcomes))
    if options.json:
        rows = [{"page": o.command.page, "command": o.command.text, "state": o.state, "how": o.how} for o in outcomes]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(outcome.state == "failed" for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())

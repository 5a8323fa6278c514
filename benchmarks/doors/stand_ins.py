"""What stands for what is the reader's own in commands of the pages, and how each command is made to end soon.

Tables, and the functions that read them; runs nothing.
"""

from __future__ import annotations

import re

GROUPS = ("tasks", "env", "model", "sandbox", "study", "recipe")
STAGES = ("run", "corpus", "pretrain", "mtp", "extend", "demos", "sft", "rl")
# What a page calls by a name of the reader's, and what stands for it here.
STAND_INS = {
    r"(?:TASK|tasks/attrs/TASK|tasks/(?:qs|attrs)/[\w-]+-deletion-\w+)": "{task}",
    r"REPO|CHECKOUT|\./mine|\./my-project|\./my-package|~/src/\w+|attrs(?:==[\d.]+)?|pyjwt|boltons|PKG\.*": "shop",
    r"M|MODEL|DIR|ONE|TWO|THREE|CHECKPOINT|ORIGINAL|RUN_OR_DIR": "my-model",
    r"sft-0000423|runs/quickstart/checkpoints/[\w-]+": "my-model",
    r"RUN|OTHER_RUN|runs/(?:nano|mine|shop|a|b|g16|nano-cpt|half|attrs|repo|ray)": "runs/quickstart",
    r"runs/[ab]/rl/trajectories": "runs/quickstart/rl/trajectories",
    r"RECIPE(?:\.toml)?": "nano",
    r"S": "1",
    r"X": "reference",
    r"FOLDER|SAVED|ROLLOUTS": "saved",
    r"SAVED/rollout-3": "{rollout}",
    r"my-copy-of-its-workspace": "workspace",
    r"tasks(?:/[\w-]+)?|TASKS|DIR\.\.\.": "tasks/shop",
    r"NAME": "async",
    r"remote:10\.0\.0\.7:7433": "remote:127.0.0.1:{sandbox_port}",
    r"10\.0\.0\.7:7433": "127.0.0.1:7435",
    r"http://127\.0\.0\.1:8000": "http://127.0.0.1:{serve_port}",
    r"SHAPE": "qwen3",
    r"FILE": "chats.jsonl",
}
# The same name stands for other things in these commands.
OWN_STAND_INS = {
    "grade": {"DIR": "workspace", "FOLDER": "workspace"},
    "audit": {"DIR": "saved", "./mine.py:Mine": "./rule.py:Mine"},
    "regrade": {"DIR": "saved"},
    "export": {"DIR": "saved"},
    "tasks": {"DIR": "out/katas"},
    "bench": {"DIR": "tasks/shop"},
    "rollout": {"DIR": "{task}"},
}


def stand_in(word: str, names: dict[str, str]) -> str:
    """A word of a command with what stands for the reader's own; `KEY=VALUE` in its value."""
    key, equals, value = word.partition("=")
    if equals and re.fullmatch(r"[\w.]+", key) and not value.startswith(("[", "{")):
        return f"{key}={stand_in(value, names)}"
    for pattern, found in STAND_INS.items():
        if re.fullmatch(pattern, word):
            return found.format(**names)
    return word


def stand_ins(words: list[str], names: dict[str, str]) -> list[str]:
    """All words but the command's own name, which may be that of a folder as well."""
    depth = 2 if words and words[0] in GROUPS else 1
    made = (
        "--out",
        "--run",
        "--save",
        "--page",
        "--train-only",
    )  # what a command writes has the name that the page gives it
    before = [*words[:1], *words]
    own = OWN_STAND_INS.get(words[0], {}) if words[1:2] != ["base"] else {"~/src/mine": "history"}
    if words[:2] == ["tasks", "split"]:  # it changes the tasks
        own = dict.fromkeys(words[2:], "tasks/again")
    own = {"DIR": "new/model"} if words[:2] == ["model", "init"] else own
    return [
        word
        if at < depth or before[at] in made
        else own[word].format(**names)
        if word in own
        else stand_in(word, names)
        for at, word in enumerate(words)
    ]


def planned(words: list[str]) -> list[str]:
    """A stage as a dry-run, with the small model in place of one on the hub, and without a GPU."""
    more = [] if "--dry-run" in words else ["--dry-run"]
    more += [] if "--run" in words else ["--run", "new/run"]
    if words[:2] == ["rl", "repo"] and len(words) == 2:  # a mention without the two settings that it needs
        more += ["rl.model=my-model", "rl.tasks.path=tasks/shop"]
    return [*words, *(["rl.model=my-model", "run.device=cpu"] if words[1].startswith("repo-") else []), *more]


# Commands that cannot be run here, with the reason; the first that matches counts.
NOT_RUN = [
    (r"--lend ", "needs a run that is under way elsewhere: tests/rl/test_rl_elastic.py lends an engine to one"),
    (r"npm:", "needs the index of npm: tests/forge/languages has JavaScript from local archives"),
    (r"--sandbox docker", "needs docker, which is not everywhere: tests/sandbox/docker"),
    (r"etude tasks ladder \w", "downloads three packages, an hour: tests/forge/ladder"),
    (r"etude study run|studies/run_many", "an hour for each arm and seed"),
    (
        r"https?://host/|openai:http|--policy http",
        "needs a hosted model: tests/policies and tests/cli talk to stand-ins",
    ),
    (r"use=.(?:wandb|tensorboard|trackio)", "needs its extra: tests/core/sinks"),
    (r"cluster\.engine=vllm", "needs vLLM's environment: tests/cluster/test_vllm.py"),
    (r"etude tasks combine", "needs pairs of made tasks, which katas are not: tests/forge/curriculum/test_combine.py"),
    (r"etude tasks import \w", "needs rows of a data set: tests/tasks/test_swe_rows.py"),
    (
        r"--from lost_default",
        "an origin that its page lets the reader write: tests/forge/origins/test_add_an_origin.py",
    ),
    (
        r"--from docstrings",
        "needs docstrings with examples, which the small repository lacks: tests/forge/origins/docstrings",
    ),
    (r"--policy attack:alias", "an attack on tasks of refactoring, which katas are not: tests/forge/gates"),
    (r"--install-completion", "writes into the shell of whoever types it"),
    (r"etude study add", "needs results of another machine: tests/bench/studies"),
    (r"--tracker", "the same as the line before it with one origin more, minutes"),
]
# Seconds matter more than size here: what is made smaller, where a command is run for real.
FEWER = [
    (r"--count \d+", "--count 1"),
    (r"--tasks \d+", "--tasks 2"),
    (r"--samples \d+", "--samples 1"),
    (r"--sandboxes \S+", "--sandboxes 10"),
]
QUICK_BASE = "base.code_bytes=2000 base.histories=2 base.history_tokens=4000 base.needle_lengths=[256] base.window=256"
QUICK_BASE += " base.needle_trials=1 base.serving_lengths=[128] base.serving_most=128 base.serving_tokens=4"
QUICK_RL = "rl.model=my-model rl.steps=1 rl.groups=1 rl.group=2 rl.concurrency=2 rl.eval_every=0 rl.seconds=20"
MORE = [
    (r"etude bench MODEL", "bench.count=2 bench.samples=1 bench.unseen_count=0"),
    (r"etude bench base \S", QUICK_BASE),
    (r"--rollouts-only|--train-only", QUICK_RL),
]
REAL_STAGES = [  # stages that take seconds with these, so that they are run
    (r"etude rl repo .*--run", "rl.steps=1 rl.groups=1 rl.group=2 rl.concurrency=2 rl.tasks.path=tasks/shop"),
    (
        r"etude corpus nano(?: --run runs/c1)?$",
        "corpus.max_bytes=200000 tokens.vocab_size=400 tokens.train_bytes=60000",
    ),
]

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
    r"REPO|CHECKOUT|\./(?:mine|my-(?:repository|project|package))|~/src/\w+": "shop",
    r"attrs(?:==[\d.]+)?|pyjwt|boltons|PKG\.*": "shop",
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
    r"openai:https://host/v1\?model=NAME": "{served}",
}
# The same name stands for other things in these commands; the first that matches counts.
OWN_STAND_INS = [
    (r"grade", {"DIR": "workspace", "FOLDER": "workspace"}),
    (r"audit", {"DIR": "saved", "./mine.py:Mine": "./rule.py:Mine", "openai:https://host/v1?model=NAME": "{hosted}"}),
    (r"regrade|export", {"DIR": "saved"}),
    (r".*--sandbox docker", {"TASK": "tasks-foreign"}),
    (r"rollout .*attack:alias", {"DIR": "{renamed}"}),
    (r"rollout", {"DIR": "{task}"}),
    (r"tasks combine", {"tasks/attrs": "tasks/made"}),
    (r"tasks import", {"ROWS": "rows.jsonl", "CHECKOUT": "history"}),
    (r"tasks (?:ladder|make .*--from docstrings)", {"boltons": "boltons"}),
    (r"tasks", {"DIR": "out/katas"}),
    (
        r"env install .*--policy (?:http|openai)",  # a toy cannot install: it is asked for what is installed
        {
            "./my-project": "other",
            "http://127.0.0.1:8000": "http://127.0.0.1:{hosted_port}",
            "openai:https://host/v1?model=NAME": "{hosted}",
        },
    ),
    (r"bench fresh", {"runs/mine": "looked", "openai:https://host/v1?model=NAME": "{hosted}"}),
    (r"bench base", {"~/src/mine": "history"}),
    (r"bench", {"DIR": "tasks/shop"}),
    (r"model init", {"DIR": "new/model", "new": "new/experts"}),  # `new` has what other commands made
    (r"serve .*--lend", {"runs/mine": "new/lent", "RUN": "new/lent", "10.0.0.7": "127.0.0.1"}),
    (r"study add", {"OUT/results.json": "OUT/results.json"}),
]


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
    own = next((own for pattern, own in OWN_STAND_INS if re.match(pattern, " ".join(words))), {})
    if words[:2] == ["tasks", "split"]:  # it changes the tasks
        own = dict.fromkeys(words[2:], "tasks/again")
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


# Seconds matter more than size here: what is made smaller, where a command is run for real.
FEWER = [
    (r"--count \d+", "--count 1"),
    (r"--tasks \d+", "--tasks 2"),
    (r"--samples \d+", "--samples 1"),
    (r"--sandboxes \S+", "--sandboxes 10"),
    (r"ladder boltons toolz", "ladder toolz"),
]
QUICK_BASE = "base.code_bytes=2000 base.histories=2 base.history_tokens=4000 base.needle_lengths=[256] base.window=256"
QUICK_BASE += " base.needle_trials=1 base.serving_lengths=[128] base.serving_most=128 base.serving_tokens=4"
QUICK_RL = "rl.model=my-model rl.steps=1 rl.groups=1 rl.group=2 rl.concurrency=2 rl.eval_every=0 rl.seconds=20"
MORE = [
    (r"etude bench MODEL", "bench.count=2 bench.samples=1 bench.unseen_count=0"),
    (r"etude bench base \S", QUICK_BASE),
    (r"--rollouts-only|--train-only", QUICK_RL),
    (r"etude tasks ladder \w", "--rungs 1"),
]
REAL_STAGES = [  # stages that take seconds with these, so that they are run
    (r"etude rl repo .*--run", "rl.steps=1 rl.groups=1 rl.group=2 rl.concurrency=2 rl.tasks.path=tasks/shop"),
    (
        r"etude corpus nano(?: --run runs/c1)?$",
        "corpus.max_bytes=200000 tokens.vocab_size=400 tokens.train_bytes=60000",
    ),
    (r"use=.(?:wandb|tensorboard)", QUICK_RL),
]

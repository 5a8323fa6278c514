"""One question on its way to a task: answered by execution, worded, written, and checked.

    review                   the suite fails with the patch, in tests of the function in question, not without its bug
    reach, implementation    the test by itself, traced under two hash seeds, runs these functions and no other choice
    raises                   one function on the test's way matters: the test fails once that raises something else
    plan                     tests fail as long as one bug is left, and nothing else could be blamed (`planning`)

What cannot be answered in exactly one way is `Refused`. The workspace is the repository, with the patch where there is
one; the answer stands in task.toml alone.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from etude.forge.environments.suite_run import SuiteRun, run_suite, run_variants
from etude.forge.languages.base import outermost
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.origins.question.instruct import tell_question
from etude.forge.origins.question.propose import otherwise
from etude.forge.origins.question.prove_plan import planned
from etude.forge.steps.candidate import Candidate, Question
from etude.forge.steps.code_change import (
    MadeTask,
    MakeContext,
    Refused,
    being_made,
    failing,
    judge_by_check,
    scrub_all,
    search_copies,
    timed,
)
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.write import assemble, put
from etude.tasks.format.config import Answer, PromptStyle
from etude.tasks.format.files import Files, Kind
from etude.tasks.format.task import TESTS, WORKSPACE, Task
from etude.tasks.kinds.answer import reference_answer

SEEDS: Final = (1, 2)  # of hashes, under which a test is traced
# For Harbor's own verifier, which sees files only: whoever runs the agent there has to write down its last words.
TEST_SH: Final = b"""#!/bin/sh
said=/logs/agent/answer.txt
[ -f "$said" ] || said=/app/answer.txt
[ -f "$said" ] || echo "this task is answered in words: put the agent's last message into /app/answer.txt" >&2
if python -c "
import re, sys
told = [line.partition(':')[2] for line in open(sys.argv[1]) if line.startswith('ANSWER:')][-1]
sys.exit(set(re.split('[,\\s]+', told.strip())) != set(open('/tests/accepted.txt').read().split()))
" "$said" 2>/dev/null; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


async def make_question(shop: MakeContext, candidate: Candidate, spent: dict[str, float]) -> MadeTask:
    """A task below `wanted.out` under a hidden name. `spent` is told the seconds of each part."""
    assert isinstance(candidate, Question)
    with timed(spent, "trial"):
        found = await _answered(shop, candidate)
    rng = random.Random(f"{shop.wanted.seed}/{found.key}")
    told = tell_question(shop.python, found, rng)
    task = write_question(shop.python, found, told, rng.choice(shop.wanted.prompt_styles), shop.wanted.seed)
    async with being_made(shop, task, spent) as folder:
        await scrub_all(folder, [], spent)  # caches and history, which say how it was before
        if found.how == "plan":
            with timed(spent, "leaks"):
                await search_copies(shop, folder, found.pieces)
        await judge_by_check(shop, folder, spent)
    return MadeTask(task, folder)


async def _answered(shop: MakeContext, asked: Question) -> Question:
    """The question, with the answer that execution gives."""
    if asked.how == "review":
        return await _reviewed(shop, asked)
    if asked.how == "plan":
        return await planned(shop, asked)
    if asked.test in shop.unsteady:
        raise Refused("a test is not always green", asked.test)
    return await (_raised(shop, asked) if asked.how == "raises" else _traced(shop, asked))


async def _reviewed(shop: MakeContext, asked: Question) -> Question:
    broken = await failing(shop, asked.changes, asked.expected)
    if not broken:
        raise Refused("no test notices")
    if stray := [test for test in broken if test not in asked.expected]:
        raise Refused("another test fails", ", ".join(stray[:3]))
    if harmed := await failing(shop, asked.without):
        raise Refused("a harmless change is none", ", ".join(harmed[:3]))
    return asked


async def _traced(shop: MakeContext, asked: Question) -> Question:
    """As the baseline saw it among others, so the test has to do by itself, whatever the hash seed."""
    for seed in SEEDS:
        run = await run_suite(
            shop.host, shop.world.environment, shop.workspace, tests=[asked.test], hash_seed=seed, trace=("",)
        )
        names = run.traces.get(asked.test, set())
        seen = {name for name in names if name in asked.choices}
        inner = {outermost(name) for name in names} - seen  # a part of it runs, and it does not
        while_loading = {outermost(name) for name in run.traces.get("", set())}
        if asked.test not in run.passed or seen != set(asked.accepted) or (inner | while_loading) & set(asked.choices):
            raise Refused("the trace is not always the same", asked.test)
    return asked


async def _raised(shop: MakeContext, asked: Question) -> Question:
    world = shop.python
    able = [world.definitions[name] for name in asked.choices]
    each = 4 * shop.base.seconds + 20  # the machine may be busy
    runs: Sequence[SuiteRun] = await run_variants(
        shop.host,
        world.environment,
        shop.workspace,
        [{}, *({one.path: otherwise(world, one)} for one in able)],
        tests=[asked.test],
        each=each,
        timeout=(1 + len(able)) * each + 30,
    )
    if not all(run.complete for run in runs) or asked.test not in runs[0].passed:
        raise Refused("the suite does not come to its end", asked.test)
    who = [one for one, run in zip(able, runs[1:], strict=True) if asked.test not in run.passed]
    if len(who) != 1:
        raise Refused("several functions raise" if who else "none of the functions raises", asked.test)
    return replace(asked, accepted=(who[0].id,), pieces=tuple(each for each in asked.pieces if each.id == who[0].id))


def write_question(
    world: PythonRepository, asked: Question, told: Instructions, prompt_style: PromptStyle, seed: int
) -> Task:
    """The task, in memory."""
    answer = Answer(kind=asked.kind, accepted=list(asked.accepted))
    files: dict[str, bytes] = {}
    kinds: dict[str, Kind] = {}
    for path, data in world.files.items():
        put(files, kinds, world, f"{WORKSPACE}/{path}", path, asked.changes.get(path, data))
    files |= {
        f"{TESTS}/test.sh": TEST_SH,
        f"{TESTS}/accepted.txt": "\n".join([*asked.accepted, ""]).encode(),
        "solution/solve.sh": f"#!/bin/sh\necho {shlex.quote(reference_answer(answer))} > /app/answer.txt\n".encode(),
    }
    parameters = {"asked": [asked.how, *([asked.test] if asked.test else [])], "choices": list(asked.choices)}
    parameters |= {"guesses": list(asked.guesses)} if asked.guesses else {}
    made = Files(files, kinds)
    return assemble(world, asked, told, prompt_style, seed, made, answer=answer, parameters=parameters)

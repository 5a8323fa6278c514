"""A question answered by execution; one that cannot be answered in exactly one way is `Refused`.

review                   the suite fails with the patch, in tests of the function in question, not without its bug
reach, implementation    the test by itself, traced under two hash seeds, runs these functions and no other choice
raises                   one function on the test's way matters: the test fails once that raises something else
plan                     tests fail as long as one bug is left, and nothing else could be blamed (`prove_plan`)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from etude.forge.environments.suite_run import run_suite
from etude.forge.languages.base import outermost
from etude.forge.origins.question.candidate import Question
from etude.forge.origins.question.propose import raising_otherwise
from etude.forge.origins.question.prove_plan import prove_plan
from etude.forge.steps.context import MakeContext, Refused
from etude.forge.steps.trial import failing

SEEDS: Final = (1, 2)  # of hashes, under which a test is traced


async def prove(context: MakeContext, question: Question) -> Question:
    """The question, with the answer that execution gives."""
    if question.how == "review":
        return await _reviewed(context, question)
    if question.how == "plan":
        return await prove_plan(context, question)
    if question.test in context.unsteady:
        raise Refused("a test is not always green", question.test)
    return await (_raised(context, question) if question.how == "raises" else _traced(context, question))


async def _reviewed(context: MakeContext, question: Question) -> Question:
    broken = await failing(context, question.changes, question.expected)
    if not broken:
        raise Refused("no test notices")
    if stray := [test for test in broken if test not in question.expected]:
        raise Refused("another test fails", ", ".join(stray[:3]))
    if harmed := await failing(context, question.without_bug):
        raise Refused("a harmless change is none", ", ".join(harmed[:3]))
    return question


async def _traced(context: MakeContext, question: Question) -> Question:
    """As the baseline saw it among others, so the test has to do by itself, whatever the hash seed."""
    for seed in SEEDS:
        run = await run_suite(
            context.host,
            context.repository.environment,
            context.workspace,
            tests=[question.test],
            hash_seed=seed,
            trace=("",),
        )
        names = run.traces.get(question.test, set())
        seen = {name for name in names if name in question.choices}
        inner = {outermost(name) for name in names} - seen  # a part of it runs, and it does not
        while_loading = {outermost(name) for name in run.traces.get("", set())}
        if (
            question.test not in run.passed
            or seen != set(question.accepted)
            or (inner | while_loading) & set(question.choices)
        ):
            raise Refused("the trace is not always the same", question.test)
    return question


async def _raised(context: MakeContext, question: Question) -> Question:
    repository = context.python
    able = [repository.definitions[name] for name in question.choices]
    variants = [{}, *({one.path: raising_otherwise(repository, one)} for one in able)]
    runs = await context.run_variants(variants, [question.test])
    if not all(run.complete for run in runs) or question.test not in runs[0].passed:
        raise Refused("the suite does not come to its end", question.test)
    who = [one for one, run in zip(able, runs[1:], strict=True) if question.test not in run.passed]
    if len(who) != 1:
        raise Refused("several functions raise" if who else "none of the functions raises", question.test)
    return replace(
        question, accepted=(who[0].id,), pieces=tuple(each for each in question.pieces if each.id == who[0].id)
    )

"""`etude plan`: memory, traffic and time of layouts of learner ranks, and the best of them, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.cli.console import Json, Overrides, RecipeName, answer, table

if TYPE_CHECKING:
    from etude.plan.request import Answer, Plan
    from etude.plan.search import Candidate

HEADERS = ("", "layout", "GiB a rank", "step", "tokens/s", "MFU", "waits most for")


def plan(
    recipe: RecipeName,
    overrides: Overrides = None,
    model: Annotated[
        str, typer.Option("--model", help="In place of the recipe's: a named shape (kimi-k2.5), or a config.json.")
    ] = "",
    stage: Annotated[str, typer.Option("--stage", help="pretrain, extend, mtp, sft or rl.")] = "pretrain",
    ranks: Annotated[str, typer.Option("--ranks", help="Number of ranks, or several to compare: 8,64,512.")] = "",
    layout: Annotated[
        str, typer.Option("--layout", help="A layout to assess: shard=4,expert=8,context=2; else the recipe's.")
    ] = "",
    machine: Annotated[str, typer.Option("--machine", help="h200-8, h100-8 or cpu; else by run.device.")] = "",
    best: Annotated[int, typer.Option("--best", min=1, help="Layouts shown, and as many rejected ones.")] = 3,
    save: Annotated[Path | None, typer.Option("--save", help="Write the plan as a page of Markdown.")] = None,
    simulated: Annotated[
        Path | None,
        typer.Option("--simulate", help="Simulate the loop with the service times of this finished run, or file."),
    ] = None,
    sandboxes: Annotated[str, typer.Option("--sandboxes", help="With --simulate: one number or several.")] = "",
    engines: Annotated[int, typer.Option("--engines", min=0, help="With --simulate: replicas; 0 grows them.")] = 0,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", help="With --simulate: engines=0.1 an hour, sandboxes, learner, slow_sandboxes=0.02."),
    ] = None,
    keep_times: Annotated[
        Path | None, typer.Option("--keep-times", help="With --simulate: write the measured service times here.")
    ] = None,
    json: Json = False,
) -> None:
    """Estimate what training takes on so many ranks: memory, traffic, time; the best layouts, why not the others.

    With --simulate: rollouts a second, staleness, waste and utilisation of the whole loop for numbers of sandboxes.
    """
    if simulated is not None:
        _simulate(recipe, overrides or (), simulated, sandboxes, engines, ranks, fault or (), save, keep_times, json)
        return
    made: list[Answer] = []

    def work() -> dict[str, Any]:
        from etude.core import durable
        from etude.plan.page import data, markdown
        from etude.plan.request import Request, make_plans

        if save is not None:
            durable.check_writable(save)
        made.append(make_plans(Request(recipe, overrides or (), model, stage, ranks, layout, machine)))
        if save is not None:
            durable.write_whole(save, markdown(made[0]))
        return data(made[0], best) | ({"saved": str(save)} if save is not None else {})

    answer(work, lambda found: _show(found, made[0], best), json)


def _simulate(
    recipe: str,
    overrides: Sequence[str],
    measured: Path,
    sandboxes: str,
    engines: int,
    ranks: str,
    faults: Sequence[str],
    save: Path | None,
    keep_times: Path | None,
    json: bool,
) -> None:
    rows: list[tuple[Any, ...]] = []

    def work() -> dict[str, Any]:
        from dataclasses import replace

        from etude.core import durable
        from etude.plan.request import read_ranks
        from etude.plan.simulator import page
        from etude.plan.simulator.environment import Faults, read_faults
        from etude.plan.simulator.forecast import Question, forecast, read_sandboxes

        for path in filter(None, (save, keep_times)):
            durable.check_writable(path)
        numbers = read_sandboxes(sandboxes) if sandboxes else ()
        fixed = read_ranks(ranks)[0] if ranks else 0
        asked = Question(recipe, overrides, measured, numbers, read_faults(faults), engines, fixed)
        times, sizes = forecast(asked)
        rows.extend(page.row(size) for size in sizes)
        if keep_times is not None:
            times.save(keep_times)
        if save is not None:
            plain = sizes if asked.faults == Faults() else forecast(replace(asked, faults=Faults()))[1]
            durable.write_whole(save, page.markdown(asked, times, plain, [] if plain is sizes else sizes))
        return page.data(asked, times, sizes) | ({"saved": str(save)} if save is not None else {})

    def show(found: dict[str, Any]) -> None:
        from etude.plan.simulator.page import HEADERS as COLUMNS

        print(f"{recipe}, simulated with service times of {found['measured']['measured'] or measured}")
        # Sizes side by side: eleven columns do not fit a terminal of 80, a few sizes do.
        table(("",) * (len(rows) + 1), list(zip(COLUMNS, *rows, strict=True)))
        if "saved" in found:
            print(f"saved: {found['saved']}")

    answer(work, show, json)


def _show(found: dict[str, Any], made: Answer, most: int) -> None:
    from etude.plan.machines import GIB
    from etude.plan.page import size_words

    work, machine = made.work, made.machine
    lora = f", LoRA of rank {work.lora}" if work.lora else ""
    used = f", {size_words(found['active_parameters'])} for a token" if work.config.num_experts else ""
    print(f"{found['model']}, {work.stage}: {size_words(found['parameters'])} parameters{used}; {work.precision}{lora}")
    print(
        f"{work.batch_tokens:,} tokens a step in sequences of {work.sequence:,}, {work.micro_tokens:,} at once; "
        f"{machine.name}: {machine.about}, {machine.usable / GIB:.0f} GiB usable"
    )
    rows = []
    for each in made.plans:
        rows += _rows(each, most if len(made.plans) == 1 else 1)
    table(HEADERS, rows)
    if len(made.plans) == 1:
        _details(made.plans[0], most)
    if "saved" in found:
        print(f"saved: {found['saved']}")


def _rows(plan: Plan, most: int) -> list[tuple[Any, ...]]:
    fits = [each for each in plan.found if not each.problem][:most]
    named = f"{plan.ranks:,} rank{'s' if plan.ranks > 1 else ''}"
    rows = [_row(named if not place else "", each) for place, each in enumerate(fits)]
    if not fits:
        rows.append(_row(named, plan.found[0]))
    if plan.asked:
        rows.append(_row("asked", plan.asked))
    return rows


def _row(name: str, each: Candidate) -> tuple[Any, ...]:
    from etude.plan.machines import GIB
    from etude.plan.page import layout_words, seconds_words, waits_most

    peak = f"{each.memory.peak / GIB:.3g}"
    if each.problem:
        return name, layout_words(each), peak, "cannot be used", "", "", ""
    time = each.time
    took = (seconds_words(time.seconds), f"{time.tokens_per_second:,.0f}", f"{time.mfu:.1%}")
    return name, layout_words(each), peak, *took, waits_most(each)


def _details(plan: Plan, most: int) -> None:
    from etude.plan.machines import GIB
    from etude.plan.page import MEMORY, causes, layout_words, seconds_words

    shown = plan.best or plan.asked or plan.found[0]
    parts = {name: part for name, part in shown.memory.parts().items() if part}
    table(("memory of a rank", "GiB"), [(MEMORY[name], f"{part / GIB:.3g}") for name, part in parts.items()])
    flows = [
        (flow.purpose, f"{flow.link / 1e9:,.3g}", f"{flow.network / 1e9:,.3g}", seconds_words(flow.seconds))
        for flow in shown.time.flows
    ]
    if flows:
        table(("a rank moves in a step", "GB over links", "GB over the network", "time"), flows)
    if plan.asked and plan.asked.why:
        print(f"asked: {layout_words(plan.asked)} {plan.asked.why}")
    slower = [each for each in plan.found if not each.problem][most : 2 * most]
    fell = [each for each in plan.found if each.problem][:most]
    if slower or fell:
        table(("other layouts", "why not"), [(layout_words(each), each.why) for each in [*slower, *fell]])
        print(f"of {len(plan.found)} candidates: {causes(plan)}; --json has them all")

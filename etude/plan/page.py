"""Plans as plain data for scripts, and as a page of Markdown."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from etude.plan.machines import GIB
from etude.plan.request import Answer, Plan
from etude.plan.search import Candidate
from etude.plan.workload import counts

MEMORY = {
    "weights": "weights",
    "gradients": "gradients",
    "moments": "moments",
    "averages": "averaged or frozen weights",
    "gathered": "gathered weights",
    "activations": "activations",
    "logits": "logits, a chunk",
    "backward": "backward pass of a block",
    "collectives": "buffers of collectives",
    "optimiser": "work of the optimiser",
    "heap": "freed, in pieces",
    "copy": "copy of a checkpoint that is being written",
    "host": "the same in the host's memory, not in the peak",
    "peak": "peak",
}
SHOWN = 5  # of those that are slower, and of those that do not fit, on a page


def data(answer: Answer, most: int) -> dict[str, Any]:
    return {
        "ok": any(plan.best for plan in answer.plans),
        "model": answer.request.model or answer.request.recipe,
        **facts(answer),
        "plans": [_plan_data(plan, most) for plan in answer.plans],
    }


def facts(answer: Answer) -> dict[str, Any]:
    """What was planned, for the head of a table or a page."""
    work, machine, found = answer.work, answer.machine, counts(answer.work.config)
    return {
        "parameters": found.parameters,
        "active_parameters": found.active,
        "stage": work.stage,
        "batch_tokens": work.batch_tokens,
        "micro_tokens": work.micro_tokens,
        "sequence": work.sequence,
        "precision": work.precision,
        "optimiser": work.matrices,
        "lora": work.lora,
        "machine": machine.name,
        "usable_bytes": machine.usable,
    }


def _plan_data(plan: Plan, most: int) -> dict[str, Any]:
    fits = [each for each in plan.found if not each.problem]
    rest = [*fits[most:], *(each for each in plan.found if each.problem)]
    return {
        "ranks": plan.ranks,
        "asked": plan.asked.data() if plan.asked else None,
        "best": [each.data() for each in fits[:most]],
        "nearest": None if fits else plan.found[0].data(),
        "others": [{"layout": asdict(e.layout), "recompute": e.recompute, "why": e.why} for e in rest],
    }


def layout_words(each: Candidate) -> str:
    """`shard 128, expert 8, context 2`: what is more than 1."""
    parts = {name: number for name, number in asdict(each.layout).items() if name != "ranks" and number > 1}
    said = ", ".join(f"{name} {number}" for name, number in parts.items()) or "whole model on each rank"
    return said + (", recompute" if each.recompute else "")


def seconds_words(seconds: float) -> str:
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def size_words(number: float) -> str:
    """`1.03T`, `32.1B`, `917M`."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:,.0f}"


def waits_most(each: Candidate) -> str:
    """What it waits for longest, and the share of the step."""
    own = ("computing", "the optimiser")
    waits = {name: spent for name, spent in each.time.waits().items() if name not in own}
    most = max(waits, key=waits.__getitem__, default="")
    return f"{most}, {waits[most] / each.time.seconds:.0%}" if most else "nothing"


def causes(plan: Plan) -> str:
    """How many candidates were rejected or slower, by cause."""
    tally = Counter[str]()
    for each in plan.found[1:] if plan.best else plan.found:
        tally["slower" if not each.problem else each.cause] += 1
    return ", ".join(f"{number} {cause}" for cause, number in tally.most_common())


def markdown(answer: Answer) -> str:
    work, machine, said = answer.work, answer.machine, facts(answer)
    name, numbers = answer.request.model or answer.request.recipe, [plan.ranks for plan in answer.plans]
    span = f"{numbers[0]:,} to {numbers[-1]:,}" if len(numbers) > 1 else f"{numbers[0]:,}"
    lines = [
        f"# {name} on {span} ranks",
        "",
        "On paper: nothing on this page was run. How the figures are made, and what they were held against, is in",
        "[plan](plan.md). This command writes the page:",
        "",
        "```sh",
        answer.request.command(),
        "```",
        "",
        f"{size_words(said['parameters'])} parameters, {size_words(said['active_parameters'])} of them for a token. "
        f"A step has {work.batch_tokens:,} tokens in sequences of {work.sequence:,}, {work.micro_tokens:,} at once; "
        f"{work.precision} and {work.matrices}. {machine.about}; {machine.usable / GIB:.0f} GiB a device can be used.",
        "",
        "| ranks | best layout | GiB a rank | step | tokens/s | MFU | waits most for |",
        "|---|---|---|---|---|---|---|",
    ]
    for plan in answer.plans:
        best = plan.best
        if best is None:
            lines.append(f"| {plan.ranks:,} | none fits | {plan.found[0].memory.peak / GIB:.0f} | | | | |")
            continue
        time = best.time
        lines.append(
            f"| {plan.ranks:,} | {layout_words(best)} | {best.memory.peak / GIB:.0f} | {seconds_words(time.seconds)} | "
            f"{time.tokens_per_second:,.0f} | {time.mfu:.1%} | {waits_most(best)} |"
        )
    for plan in answer.plans:
        lines += ["", f"## {plan.ranks:,} ranks", "", *_section(plan)]
    return "\n".join(lines) + "\n"


def _section(plan: Plan) -> list[str]:
    shown = plan.best or plan.found[0]
    lines = []
    if plan.best is None:
        lines += [f"None of {len(plan.found)} layouts fits. The nearest, {layout_words(shown)}, {shown.problem}.", ""]
    parts = {name: part for name, part in shown.memory.parts().items() if part >= GIB / 20}
    lines += ["| memory of a rank | GiB |", "|---|---|"]
    lines += [f"| {MEMORY[name]} | {part / GIB:.1f} |" for name, part in parts.items()]
    if plan.best is None:
        return lines
    lines += ["", "| a rank moves in a step | GB over links | GB over the network | time | |", "|---|---|---|---|---|"]
    for flow in shown.time.flows:
        beside = "while it computes" if flow.hidden else "it waits"
        moved = f"{flow.link / 1e9:,.1f} | {flow.network / 1e9:,.1f}"
        lines.append(f"| {flow.purpose} | {moved} | {seconds_words(flow.seconds)} | {beside} |")
    fits = [each for each in plan.found[1:] if not each.problem][:SHOWN]
    fell = [each for each in plan.found if each.problem][:SHOWN]
    lines += ["", "| other layouts | why not |", "|---|---|"]
    lines += [f"| {layout_words(each)} | {each.why} |" for each in [*fits, *fell]]
    return [*lines, "", f"Of {len(plan.found)} candidates: {causes(plan)}."]

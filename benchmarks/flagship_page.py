"""The page of a flagship run, from what it left in OUT: no figure stands there that is not in a file of the run."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from etude.bench.result import BenchResult, TaskRow, compare, load_result
from etude.bench.stats import Interval, mean_pass_at, paired_gain
from etude.core.run_files import read_facts, read_metrics

EVALUATIONS = 3  # the katas of an evaluation, in so many equal parts
NAMES = {"sft": "after fine-tuning", "rl": "after reinforcement learning", "fair": "fine-tuned for longer"}
BAR = "| what | bar | measured | met |\n|---|---|---|---|"


def write_page(out: Path, to: Path, notes: Sequence[str] = ()) -> int:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        with tarfile.open(out / "flagship.tar.gz") as archive:
            archive.extractall(work, filter="data")
        text = "\n".join([*page(work), *(f"- {note}" for note in notes)]) + "\n"
    to.write_text(text)
    print(f"{to}: {len(text.splitlines())} lines")
    return 0


def page(work: Path) -> Iterator[str]:
    state = json.loads((work / "state.json").read_text())
    runs = {path.parent.name: path.parent for path in sorted(work.glob("*/run.json"))}
    rows = {name: read_metrics(run) for name, run in runs.items()}
    facts = {name: read_facts(run)["stages"] for name, run in runs.items()}
    machine = read_facts(next(iter(runs.values())))["lineages"][0]
    rl = next((name for name in ("rl-3", "rl-2", "rl") if name in runs), "rl")
    base = "base-2" if "base-2" in runs else "base"
    results = evaluations(work)
    yield "# The flagship"
    yield ""
    yield "One model, trained from nothing by the recipe `flagship`: experts, latent attention, MTP heads; pretrained"
    yield "on the Python code of the machine, extended to longer contexts, fine-tuned on a fixed set of demonstrations,"
    yield "then reinforcement learning with stated effort, summaries, feedback and router replay. All figures are of"
    yield f"one run, one seed, begun {machine['started']}; `python benchmarks/flagship.py --page OUT` writes this page"
    yield "from the files of that run."
    yield ""
    yield "```"
    yield "python benchmarks/flagship.py --work DIR --out OUT --until 560 --ladder TASKS    # the same command goes on"
    yield "etude plan flagship --model qwen3-30b-a3b --ranks 8,16        # a larger one of the recipe"
    yield "```"
    yield ""
    yield from shape_lines(work)
    yield "## Stages"
    yield ""
    yield from stage_lines(state, facts, rows, base, rl)
    yield from pretrain_lines(rows.get(base, []))
    yield from evaluation_lines(results)
    yield from learning_lines(rows.get(rl, []))
    yield from forgetting_lines(work)
    yield from bar_lines(results, work)
    yield from example_lines(results)
    yield "## What it does not show"
    yield ""
    yield from limit_lines(state, results, facts.get("demos", {}).get("demos", {}).get("facts", {}))


def limit_lines(
    state: dict[str, Any], results: dict[tuple[str, str], BenchResult], demos: dict[str, Any]
) -> Iterator[str]:
    yield "- One seed. The intervals are over tasks and say nothing about other seeds."
    if failed := [f"`{name}`" for name, row in state.items() if row.get("status") == "failed"]:
        yield f"- These steps failed: {', '.join(failed)}."
    if missing := [f"`{name}`" for name in STEPS if name not in state]:
        yield f"- These steps were left out, for want of time or of tasks: {', '.join(missing)}."
    if ways := [f"`{name}` (way {row['way'] + 1})" for name, row in state.items() if row.get("way")]:
        yield f"- These steps went another way than the recipe's: {', '.join(ways)}."
    if demos.get("void"):
        yield f"- {demos['void']:,} demonstrations were void, and are missing from fine-tuning."
    longer, learnt = (state.get(name, {}).get("seconds", 0) for name in ("fair", "rl"))
    if 0 < longer < 0.9 * learnt:
        yield f"- Fine-tuning went on for {longer:.0f} s, its start included, and reinforcement learning took"
        yield f"  {learnt:.0f} s: the two are not compared at equal time."
    if ("fair", "katas") in results and ("fair", "ladder") not in results:
        yield "- The model that was fine-tuned for longer did not try the ladder."
    ladder = results.get(("rl", "ladder"))
    if ladder is not None and not ladder.audited:
        yield "- Whether what passes on the ladder is honest: the audit's verdicts on these rollouts were not kept."


STEPS = (
    *("corpus", "pretrain", "mtp", "extend", "demos", "sft", "eval-sft-katas", "eval-sft-ladder", "rl"),
    *("eval-rl-katas", "eval-rl-ladder", "base-evals", "fair", "eval-fair-katas"),
)


def shape_lines(work: Path) -> Iterator[str]:
    config = work / "carried-model" / "config.json"
    if not config.is_file():
        return
    hf = json.loads(config.read_text())
    named = {
        "blocks": "num_hidden_layers",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "latent of keys and values": "kv_lora_rank",
        "experts": "n_routed_experts",
        "experts of a token": "num_experts_per_tok",
        "shared experts": "n_shared_experts",
        "MTP heads": "num_nextn_predict_layers",
        "vocabulary": "vocab_size",
        "positions": "max_position_embeddings",
    }
    yield "The model: " + ", ".join(f"{words} {hf[key]:,}" for words, key in named.items() if hf.get(key) is not None)
    index = work / "carried-model" / "model.safetensors.index.json"
    if index.is_file():
        size = json.loads(index.read_text())["metadata"]["total_size"]
        yield f"({size / 2**20:.1f} MiB of weights in bfloat16, about {size / 2e6:.1f}M parameters)."
    yield ""


def stage_lines(
    state: dict[str, Any], facts: dict[str, Any], rows: dict[str, list[dict[str, Any]]], base: str, rl: str
) -> Iterator[str]:
    yield "| step | seconds | what |"
    yield "|---|---|---|"
    stages = {"corpus": base, "pretrain": base, "mtp": base, "extend": base, "demos": "demos", "sft": "sft", "rl": rl}
    for name in STEPS:
        if name not in state:
            continue
        folder = stages.get(name, name)
        known = facts.get(folder, {}).get("sft" if name == "fair" else name, {}).get("facts", {})
        words = said(name, known, rows.get(folder, []))
        yield f"| {name} | {state[name].get('seconds', 0):.0f} | {words or state[name].get('status', '')} |"
    yield ""
    total = sum(row.get("seconds", 0) for name, row in state.items() if name in STEPS and name != "demos")
    yield f"Seconds are of whole commands, start included: {total / 60:.0f} minutes without the demonstrations, which"
    yield "are made beside pretraining."
    yield ""


def said(name: str, known: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """A stage in a few words."""
    stage = {"fair": "sft"}.get(name, name)
    mine = [row for row in rows if row["stage"] == stage]
    speeds = sorted(row["tokens_per_second"] for row in mine if row.get("tokens_per_second"))
    words = []
    if name == "corpus" and known:
        words += [f"{known['bytes'] / 1e6:.0f} MB, {known['train_tokens'] / 1e6:.1f}M tokens"]
    if name == "demos" and known:
        left_out = f"{known['failed']} failed, {known['hacked']} hacks, {known['void']} void"
        words += [f"{known['kept']:,} conversations; {left_out}"]
    if name == "rl" and known:
        learning = [row for row in mine if "pass_rate" in row]
        words += [f"{len(learning)} steps"]
        words += [f"{known['rollouts']:,} rollouts"] if "rollouts" in known else []
    elif known.get("steps"):
        words += [f"{known['steps']:,} steps"]
    if speeds:
        words += [f"{speeds[len(speeds) // 2]:,} tokens/s (median step)"]
    words += [f"accepted {known['accepted.1']:.3f}"] if "accepted.1" in known else []
    return ", ".join(words)


def pretrain_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    held = [row for row in rows if row["stage"] == "pretrain" and row.get("held_out_bits_per_byte")]
    if held:
        yield "Held-out bits per byte of pretraining: " + ", ".join(
            f"{row['held_out_bits_per_byte']:.3f} (step {row['step']})" for row in thin(held, 8)
        )
        yield ""
    long = [row for row in rows if row["stage"] == "extend" and row.get("held_out_loss")]
    ranges = [key for key in (long[-1] if long else {}) if key.startswith("held_out_loss_to_")]
    if len(long) > 1 and ranges:
        yield "Loss of held-out repositories by position, before and after `extend`:"
        yield ""
        yield f"| positions to | {' | '.join(key.removeprefix('held_out_loss_to_') for key in ranges)} | all |"
        yield "|---" * (len(ranges) + 2) + "|"
        for words, row in (("before", long[0]), ("after", long[-1])):
            cells = [f"{row[key]:.3f}" if row.get(key) is not None else "" for key in ranges]
            yield f"| {words} | {' | '.join(cells)} | {row['held_out_loss']:.3f} |"
        yield ""


def evaluations(work: Path) -> dict[tuple[str, str], BenchResult]:
    found = {}
    for file in sorted(work.glob("eval-*.json")):
        _, arm, tasks = file.stem.split("-", 2)
        found[arm, tasks] = load_result(file)
    return found


def parts(result: BenchResult) -> list[Sequence[TaskRow]]:
    rows = result.rows()
    size = -(-len(rows) // EVALUATIONS)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def gains_of_parts(before: BenchResult, after: BenchResult, k: int) -> list[Interval | None]:
    """The gain in pass@k of each evaluation by itself."""
    pairs = zip(parts(before), parts(after), strict=True)
    return [paired_gain(k, [row.tally for row in old], [row.tally for row in new]) for old, new in pairs]


def pass_at(k: int, rows: Sequence[TaskRow]) -> Interval | None:
    return mean_pass_at(k, [row.tally for row in rows])


def share(interval: Interval | None) -> str:
    if interval is None:
        return "none"
    return f"{100 * interval.mean:.1f}% ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def gain_text(interval: Interval | None) -> str:
    if interval is None:
        return "none"
    return f"{100 * interval.mean:+.1f} ({100 * interval.low:+.1f} to {100 * interval.high:+.1f})"


def evaluation_lines(results: dict[tuple[str, str], BenchResult]) -> Iterator[str]:
    if not results:
        return
    yield "## Evaluations"
    yield ""
    yield "| tasks | model | pass@1 | best of all samples | tokens | format errors | rollouts, void |"
    yield "|---|---|---|---|---|---|---|"
    for tasks in ("katas", "ladder"):
        for arm in NAMES:
            if (arm, tasks) not in results:
                continue
            one = results[arm, tasks]
            counts = one.counts.get("held_out")
            wrong = f"{100 * counts.format_errors:.1f}%" if counts else ""
            words = f"{NAMES[arm]} | {share(one.pass_at(1))} | {share(one.pass_at(one.samples))} ({one.samples})"
            rollouts = f"{len(one.rows()) * one.samples:,}, {one.void}"
            yield f"| {tasks} | {words} | {one.tokens():.0f} | {wrong} | {rollouts} |"
    yield ""
    for tasks in ("katas", "ladder"):
        for arm in ("rl", "fair"):
            before, after = results.get(("sft", tasks)), results.get((arm, tasks))
            if before and after:
                first, all_ = compare(before, after), compare(before, after, before.samples)
                yield f"- {tasks}, {NAMES[arm]} against fine-tuning, in pairs:"
                yield f"  pass@1 {gain_text(first)} points, best of {before.samples} {gain_text(all_)}"
        longer, learnt = results.get(("fair", tasks)), results.get(("rl", tasks))
        if longer and learnt:
            gain = gain_text(compare(longer, learnt))
            yield f"- {tasks}, reinforcement learning against fine-tuning for longer, in pairs: {gain} points"
        if learnt and learnt.audited:
            hacks, passed = learnt.audited.get("hack", 0), sum(learnt.audited.values())
            yield f"- {tasks}, {NAMES['rl']}: the audit calls {hacks} of {passed} rollouts that passed a hack"
    before, after = results.get(("sft", "katas")), results.get(("rl", "katas"))
    if before and after:
        yield ""
        yield "Three evaluations of katas, each of other tasks: pass@1, then best of all samples, before -> after"
        yield ""
        for old, new, gain in zip(parts(before), parts(after), gains_of_parts(before, after, 1), strict=True):
            cells = [f"{share(pass_at(n, old))} -> {share(pass_at(n, new))}" for n in (1, before.samples)]
            yield f"- {len(old)} tasks: {cells[0]}, paired {gain_text(gain)}; {cells[1]}"
    yield ""


LEARNT = (
    ("pass_rate", "pass rate", "{:.1%}"),
    ("summaries", "summaries a rollout", "{:.2f}"),
    ("drift_mean", "drift", "{:.4f}"),
    ("k3", "k3", "{:.1e}"),
    ("probe_mean", "numerics, mean", "{:.1e}"),
    ("replay_moved", "replay moved", "{:.3f}"),
    ("replay_refused", "refused", "{:.4f}"),
    ("twins", "hinted turns", "{:.1f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("seconds", "seconds a step", "{:.2f}"),
)

ABSENT_IS_NONE = ("summaries", "twins")  # a step has the metric only where there were some


def learning_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    learning = [row for row in rows if row["stage"] == "rl" and "pass_rate" in row]
    if not learning:
        return
    keys = [(key, words, form) for key, words, form in LEARNT if any(row.get(key) is not None for row in learning)]
    yield "## Reinforcement learning"
    yield ""
    yield f"| steps | {' | '.join(words for _, words, _ in keys)} |"
    yield "|---" * (len(keys) + 1) + "|"
    size = -(-len(learning) // 10)
    for start in range(0, len(learning), size):
        some = learning[start : start + size]
        cells = []
        for key, _, form in keys:
            absent = 0 if key in ABSENT_IS_NONE else None
            values = [value for row in some if (value := row.get(key, absent)) is not None]
            cells.append(form.format(sum(values) / len(values)) if values else "")
        yield f"| {some[0]['step']} to {some[-1]['step']} | {' | '.join(cells)} |"
    yield ""
    yield from half_lines(learning)
    held = [row for row in rows if row["stage"] == "rl.eval" and row.get("pass_rate") is not None]
    if held:
        yield "Evaluations on held-out katas beside training: " + ", ".join(
            f"{row['pass_rate']:.0%} (step {row['step']})" for row in thin(held, 12)
        )
        yield ""


# What has a row of its own, by the first word of its metrics, and which of them are its columns.
SPLIT = (
    ("source", ("rollouts", "pass_rate", "rollout_tokens", "turns", "tool_errors", "malformed")),
    ("effort", ("pass_rate", "tokens")),
)
COLUMNS = {
    "pass_rate": "pass rate",
    "rollout_tokens": "tokens",
    "tool_errors": "tool errors",
    "malformed": "broken turns",
}
COUNTED = (("behaviour_", "behaviour, times a rollout"), ("verdict_", "verdict of the audit, rollouts"))


def half_lines(learning: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Means of a step by source of tasks, stated effort, behaviour and verdict, for each half of the steps."""
    half = len(learning) // 2 or 1

    def cell(key: str, *, absent: float | None = None) -> str:
        means = []
        for some in (learning[:half], learning[half:]):
            values = [value for row in some if (value := row.get(key, absent)) is not None]
            means.append(f"{sum(values) / len(values):.3g}" if values else "none")
        return " -> ".join(means)

    found = sorted({key for row in learning for key in row})
    tables = []
    for prefix, columns in SPLIT:
        names = [key[len(prefix) + 1 :].removesuffix("_pass_rate") for key in found if key.startswith(f"{prefix}_")]
        names = [name for name in names if f"{prefix}_{name}_pass_rate" in found]
        rows = [[name, *(cell(f"{prefix}_{name}_{column}") for column in columns)] for name in names]
        tables.append(([prefix, *(COLUMNS.get(column, column) for column in columns)], rows))
    for prefix, title in COUNTED:
        # What did not happen in a step has no metric there.
        rows = [[key.removeprefix(prefix), cell(key, absent=0.0)] for key in found if key.startswith(prefix)]
        tables.append(([title, "mean"], rows))
    if any(rows for _, rows in tables):
        yield "Means of a step, first half of the steps -> second half:"
        yield ""
    for head, rows in tables:
        if rows:
            yield f"| {' | '.join(head)} |"
            yield "|---" * len(head) + "|"
            yield from (f"| {' | '.join(row)} |" for row in rows)
            yield ""


def forgetting_lines(work: Path) -> Iterator[str]:
    figures = forgetting(work)
    if not figures:
        return
    yield "## Forgetting"
    yield ""
    yield "Bits per byte of a fixed sample of Python's library, which pretraining has seen, after each stage:"
    yield ""
    yield f"| {' | '.join(figures)} |"
    yield "|---" * len(figures) + "|"
    yield f"| {' | '.join(f'{value:.3f}' for value in figures.values())} |"
    yield ""
    if "rl" in figures:
        changes = {name: 100 * (figures["rl"] / value - 1) for name, value in figures.items() if name != "rl"}
        before = [f"{change:+.1f}% of {name}" for name, change in changes.items()]
        yield f"After reinforcement learning: {', '.join(before)}. More is worse."
        yield ""


def forgetting(work: Path) -> dict[str, float]:
    file, named = work / "base-evals.json", work / "base-evals-models.json"
    if not file.is_file() or not named.is_file():
        return {}
    found = json.loads(file.read_text())
    models = {row["model"]: row for row in found.get("models", [found])}
    names = json.loads(named.read_text())
    return {name: models[path]["codebase"]["bits_per_byte"] for name, path in names.items() if path in models}


def bar_lines(results: dict[tuple[str, str], BenchResult], work: Path) -> Iterator[str]:
    lines = []
    before, after = results.get(("sft", "katas")), results.get(("rl", "katas"))
    if before and after and (gain := compare(before, after)):
        best = compare(before, after, before.samples)
        far = sum(each is not None and each.mean >= 0.2 for each in gains_of_parts(before, after, 1))
        best_of = gains_of_parts(before, after, before.samples)
        higher = sum(each is not None and each.mean > 0 for each in best_of)
        measured, met = f"{gain_text(gain)}; in {far} of {EVALUATIONS}", gain.mean >= 0.2 and far == EVALUATIONS
        lines.append(f"| katas: pass@1, in all and in each evaluation | 20 points | {measured} | {yes(met)} |")
        measured, met = f"{gain_text(best)}; in {higher} of {EVALUATIONS}", best is not None and best.mean > 0
        words = yes(met) + (", by its mean only" if met and best is not None and best.low <= 0 else "")
        lines.append(f"| katas: best of {before.samples}, likewise | higher | {measured} | {words} |")
    before, after = results.get(("sft", "ladder")), results.get(("rl", "ladder"))
    if before and after and (one := before.pass_at(1)) and (two := after.pass_at(1)):
        gain = compare(before, after)
        met = one.mean > 0.03 and two.mean >= 2 * one.mean and gain is not None and gain.low > 0
        what = "packages never seen: fine-tuning above 3%, learning doubles it"
        lines.append(f"| {what} | 3%, 2x | {share(one)} -> {share(two)}, paired {gain_text(gain)} | {yes(met)} |")
    figures = forgetting(work)
    first = next((name for name in ("extend", "pretrain") if name in figures), None)
    if "rl" in figures and first:
        ratio = figures["rl"] / figures[first] - 1
        what = f"bits per byte after reinforcement learning against the base that was fine-tuned (`{first}`)"
        lines.append(f"| {what} | at most 10% more | {100 * ratio:+.1f}% | {yes(ratio <= 0.1)} |")
    if lines:
        yield "## Bars"
        yield ""
        yield BAR
        yield from lines
        yield ""


def yes(met: bool) -> str:
    return "yes" if met else "no"


def example_lines(results: dict[tuple[str, str], BenchResult], most: int = 3) -> Iterator[str]:
    """What the trained agent did in tasks that it passes."""
    shown = [row for tasks in ("ladder", "katas") if (rl := results.get(("rl", tasks))) for row in rl.rows()]
    passed = [row for row in shown if row.shown is not None and row.shown.passed][:most]
    if not passed:
        return
    yield "## Examples"
    yield ""
    for row in passed:
        assert row.shown is not None
        yield f"`{row.name}`, passed:"
        yield ""
        yield "````text"
        for turn in row.shown.turns:
            if turn.role == "system":
                continue
            for text in (turn.thinking, turn.text):
                if text.strip():
                    yield f"{turn.role}: {clip(text)}"
            for name, arguments in turn.calls:
                yield f"{turn.role}: {name}({', '.join(f'{key}={clip(value)!r}' for key, value in arguments.items())})"
        yield "````"
        yield ""


def clip(text: str, most: int = 500) -> str:
    text = text.strip()
    return text if len(text) <= most else f"{text[:most]} ..."


def thin(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    every = -(-len(rows) // most)
    return [*rows[::-1][::every]][::-1]

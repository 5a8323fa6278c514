"""Commands that benchmark: `etude bench MODEL` or `--policy X` on tasks, `etude bench base MODEL` without an agent."""

from __future__ import annotations

import json as jsonlib
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from etude.cli.console import Backend, Json, Overrides, answer, points, share, table

if TYPE_CHECKING:
    from etude.bench.result import BenchResult
    from etude.core.recipe import Recipe

DEFAULT = "tasks"
MOST_ROWS = 30  # tasks that are listed one by one

Save = Annotated[Path | None, typer.Option("--save", help="JSON file for the result.")]


class _Bench(TyperGroup):
    """`etude bench MODEL ...` means `etude bench tasks MODEL ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if named or not args else [DEFAULT, *args])


bench_app = typer.Typer(
    cls=_Bench,
    no_args_is_help=True,
    help="Benchmark a model: on tasks (`etude bench MODEL`), or as a base to start from (`etude bench base MODEL`).",
)


@bench_app.command(DEFAULT)
def bench_tasks(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="A run, a checkpoint, a Hugging Face directory or hub name."),
    ] = None,
    overrides: Overrides = None,
    tasks: Annotated[
        Path | None, typer.Option("--tasks", help="A folder of task directories; else what the recipe says.")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Of that folder: only tasks of train, or of held_out.")] = "",
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="In place of MODEL: reference, null, stub, attack:NAME, a model as above, "
            "or a hosted one (openai:https://host/v1?model=NAME).",
        ),
    ] = "",
    recipe: Annotated[
        str, typer.Option("--recipe", help="Whose harness and engine to use; else the run's own, or the defaults.")
    ] = "",
    save: Save = None,
    against: Annotated[Path | None, typer.Option("--against", help="An earlier result: the gain, in pairs.")] = None,
    sandbox: Backend = "local",
    json: Json = False,
) -> None:
    """Benchmark a model or any other policy on tasks. `etude bench MODEL` is short for it."""
    found: list[BenchResult] = []

    def work() -> dict[str, Any]:
        from etude.bench.result import check_pairs, compare, differences, load_result, summarise
        from etude.bench.runner import bench_tasks as listed
        from etude.core import durable

        # A first word such as bench.samples=2 is a setting: with --policy there need be no model.
        words = [word for word in (model, *(overrides or [])) if word]
        given = words.pop(0) if words and "=" not in words[0] else ""
        settings = _recipe(given, policy, recipe, words, tasks, split)
        # Before the first rollout: a mistake here would otherwise cost the whole benchmark.
        earlier = load_result(against) if against is not None else None
        if earlier is not None:
            check_pairs(earlier, [(which, task.name, task.digest) for which, task in listed(settings.bench)])
        if save is not None:
            durable.check_writable(save)
        result, facts = _benchmark(given, policy, settings, sandbox, save)
        found.append(result)
        gain = compare(earlier, result) if earlier is not None else None
        rows = result.rows()
        facts |= summarise(result) | {"tasks": len(rows), "samples": result.samples, "trained_on": result.trained_on}
        facts |= {"gain": list(gain)} if gain is not None else {}
        facts |= {"differs": differences(earlier, result)} if earlier is not None else {}
        return facts | ({"saved": str(save)} if save is not None else {})

    answer(work, lambda facts: _show_tasks(facts, found[0], against), json)


def _recipe(model: str, policy: str, named: str, words: list[str], tasks: Path | None, split: str) -> Recipe:
    """The recipe that was named or the model's, with the tasks of a folder in place of its benchmark's."""
    from etude.core import recipe as recipes
    from etude.core.errors import EtudeError
    from etude.core.run_files import run_of
    from etude.model.checkpoint.directory import read_config
    from etude.pipeline.find_model import find_model, recipe_of
    from etude.policies.table import is_hosted, needs_no_model

    if not model and not policy:
        raise EtudeError("say what to benchmark: a model (etude bench runs/quickstart) or --policy reference")
    if tasks is not None:
        source = f"bench.tasks={{use='folder', path={jsonlib.dumps(str(tasks))}, split={jsonlib.dumps(split)}}}"
        words = [source, "bench.count=0", "bench.unseen_count=0", *words]  # 0: all of them
    elif split:
        raise EtudeError("--split chooses among the tasks of a folder: give --tasks DIR as well")
    if named or (policy and not model and needs_no_model(policy)):
        return recipes.load(named or None, words)
    found = recipe_of(Path(model or policy), words)
    if run_of(Path(model or policy)) is not None:
        return found
    # A model that comes with no recipe: the defaults of engine, harness and model were not made for each other.
    context = found.harness.limits.context_tokens
    if not is_hosted(policy or model):
        context = min(context, read_config(find_model(Path(policy or model))).max_position_embeddings)
    fitting = [f"harness.limits.context_tokens={context}", f"engine.max_length={max(context, found.engine.max_length)}"]
    return recipe_of(Path(model or policy), [*fitting, *words])


def _benchmark(
    model: str, policy: str, recipe: Recipe, sandbox: str, save: Path | None
) -> tuple[BenchResult, dict[str, Any]]:
    from etude.bench.runner import bench_checkpoint, bench_hosted, bench_scripted
    from etude.pipeline.find_model import find_model
    from etude.policies.table import is_hosted, needs_no_model

    if is_hosted(policy):
        result, spent = bench_hosted(policy, recipe, backend=sandbox, save=save)
        return result, {"model": policy, "spent": spent}
    if policy and needs_no_model(policy):
        return bench_scripted(policy, recipe, backend=sandbox, save=save), {"model": policy}
    folder = find_model(Path(policy or model))
    return bench_checkpoint(folder, recipe, backend=sandbox, save=save), {"model": str(folder)}


def _show_tasks(facts: dict[str, Any], result: BenchResult, against: Path | None) -> None:
    from etude.bench.trained_on import called, warning
    from etude.policies.scripted import SCRIPTS

    tasks = result.rows()
    rows: list[tuple[Any, ...]] = [("model", facts["model"])]
    what = called(len(tasks), result.trained_on)
    rows.append(("tasks", f"{len(tasks)} {what}, {_rollouts(result.samples)} each, {result.backend} sandboxes"))
    rows.append(("pass@1", share(facts["pass@1"])))
    rows += [(f"pass@{k}", share(facts[f"pass@{k}"])) for k in result.ks if k > 1]
    rows.append(("tokens", f"{facts['tokens']:.1f} written in a rollout"))
    rows.append(("format errors", f"{share(facts['format_errors'])} of turns"))
    if result.void:
        rows.append(("void", f"{_rollouts(result.void)} left out: sandbox, grader or engine failed"))
    if result.audited:
        hacks, audited = result.audited.get("hack", 0), sum(result.audited.values())
        rows.append(("audit", f"calls {hacks} of {_rollouts(audited)} that passed a hack"))
    if "gain" in facts:
        rows.append(("gain", f"{points(facts['gain'])} in pass@1, in pairs, over {against}"))
    if spent := facts.get("spent"):
        rows.append(("spent", ", ".join(f"{name} {value:g}" for name, value in spent.items())))
    if len(tasks) <= MOST_ROWS:
        # Failures first: they are what somebody who reads the list looks for.
        listed = sorted(tasks, key=lambda row: (row.tally.passed / max(1, row.tally.rollouts), row.name))
        table(("task", "passed"), [(row.name, _passed(row.tally.passed, row.tally.rollouts)) for row in listed])
    table(("", ""), rows)
    said = warning(len(tasks), result.trained_on)
    if said and facts["model"] not in SCRIPTS:
        print(said)
    if facts.get("differs"):
        print(f"warning: the gain is not of the model alone: {'; '.join(facts['differs'])}")
    if "saved" in facts:
        print(f"saved: {facts['saved']}")


def _rollouts(number: int) -> str:
    return f"{number} rollout" if number == 1 else f"{number} rollouts"


def _passed(passed: int, rollouts: int) -> Text:
    return Text(f"{passed} of {rollouts}", "green" if passed == rollouts else "red" if not passed else "yellow")


@bench_app.command("base")
def bench_base(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... [KEY=VALUE]...", help="Runs, checkpoints or Hugging Face directories; then changes."
        ),
    ],
    code: Annotated[Path | None, typer.Option("--code", help="Folder of code; default: Python's library.")] = None,
    repository: Annotated[Path | None, typer.Option("--repo", help="Git checkout; default: invented files.")] = None,
    questions: Annotated[Path | None, typer.Option("--questions", help="JSONL on fresh knowledge.")] = None,
    only: Annotated[str, typer.Option("--only", help="Some of codebase,tracking,needle,serving,fresh.")] = "",
    page: Annotated[Path | None, typer.Option("--page", help="Write the table as .html or .md.")] = None,
    save: Save = None,
    json: Json = False,
) -> None:
    """Measure models without an agent: bits per byte of code, state tracking, needles, fresh facts, cost of serving."""

    def work() -> dict[str, Any]:
        from etude.core import durable
        from etude.core.errors import EtudeError

        models = [Path(word) for word in words if not _is_change(word)]
        if not models:
            raise EtudeError("name at least one model: etude bench base DIR...")
        given = {"base.code": code, "base.repository": repository, "base.questions": questions}
        paths = [f"{key}={jsonlib.dumps(str(path))}" for key, path in given.items() if path is not None]
        changes = [*(word for word in words if _is_change(word)), *paths]
        if page is not None:
            from etude.bench.base.comparison import as_page

            as_page(page, [])  # a wrong name is refused before anything is measured
        for file in [file for file in (page, save) if file is not None]:
            durable.check_writable(file)
        found = [_measure_base(model, changes, only) for model in models]
        if page is not None:
            durable.write_whole(page, as_page(page, found))
        result = found[0] if len(found) == 1 else {"models": found}
        if save is not None:
            durable.write_whole(save, jsonlib.dumps(result, indent=1) + "\n")
        return result

    answer(work, _show_base_models, json)


@bench_app.command("fresh")
def bench_fresh(
    rollouts: Annotated[Path, typer.Argument(metavar="ROLLOUTS", help="Saved rollouts: a run, or a folder of them.")],
    policy: Annotated[
        str, typer.Option("--policy", help="Model that writes questions: openai:https://host/v1?model=NAME.")
    ],
    save: Annotated[Path, typer.Option("--save", help="JSONL file for the questions.")],
    validator: Annotated[str, typer.Option("--validator", help="Checks them by the source; else --policy.")] = "",
    unknown_to: Annotated[str, typer.Option("--unknown-to", help="Drop what this one knows without the source.")] = "",
    most: Annotated[int, typer.Option("--most", min=1, help="Most questions that are made.")] = 200,
    json: Json = False,
) -> None:
    """Make dated questions on fresh knowledge from traces in which an agent read a library or searched its docs."""

    def work() -> dict[str, Any]:
        import asyncio
        from datetime import datetime

        from etude.bench.base.fresh import write_questions
        from etude.bench.base.fresh_questions import lookups_below, make_questions, summary
        from etude.core import durable
        from etude.core.errors import EtudeError
        from etude.core.settings import EndpointSettings
        from etude.policies.table import hosted_policy, is_hosted

        durable.check_writable(save)
        found = lookups_below(rollouts)
        if not found:
            raise EtudeError(
                f"in no rollout of {rollouts} did an agent read an installed library or search documentation"
            )
        for name in [name for name in (policy, validator, unknown_to) if name and not is_hosted(name)]:
            raise EtudeError(f"{name!r} cannot write questions; name a hosted model: openai:https://host/v1?model=NAME")

        async def make() -> Any:
            names = [policy, validator or policy, *([unknown_to] if unknown_to else [])]
            endpoint = EndpointSettings(form="text", ids=False)  # answers are read as they are
            made = {name: hosted_policy(name, endpoint, {}) for name in names}
            try:
                day = datetime.now(UTC).date().isoformat()
                rest = made[unknown_to] if unknown_to else None
                return await make_questions(found, made[policy], made[validator or policy], day, rest, most)
            finally:
                for each in made.values():
                    await each.close()

        made = asyncio.run(make())
        durable.write_whole(save, write_questions(made.questions))
        return {"ok": bool(made.questions), "lookups": len(found), **summary(made), "saved": str(save)}

    def show(found: dict[str, Any]) -> None:
        print(f"{found['questions']} questions from {found['lookups']} lookups, saved: {found['saved']}")
        if found["dropped"]:
            table(("dropped", ""), list(found["dropped"].items()))

    answer(work, show, json)


@bench_app.command("fit")
def bench_fit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run; for --name private, one with pretrain.private.")],
    name: Annotated[str, typer.Option("--name", help="private, or a source of the corpus; empty: all.")] = "private",
    stage: Annotated[str, typer.Option("--stage", help="pretrain or extend.")] = "pretrain",
    json: Json = False,
) -> None:
    """Fit a line to a held-out loss over the logarithm of the steps: what each doubling of training gives."""

    def work() -> dict[str, Any]:
        from dataclasses import asdict

        from etude.bench.base.loss_fit import fit_run

        return asdict(fit_run(run, name, stage))

    def show(found: dict[str, Any]) -> None:
        table(
            ("held-out loss", found["name"] or "all"),
            [
                ("measured", f"{found['first']:.4f} -> {found['last']:.4f} nats, {len(found['steps'])} times"),
                ("each doubling of the steps", f"{found['per_doubling']:+.4f} nats"),
                ("how well a line fits", f"R2 {found['r_squared']:.3f}"),
                ("twice the steps would give", f"{found['doubled']:.4f} nats"),
            ],
        )

    answer(work, show, json)


def _is_change(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and key.replace(".", "").replace("_", "").isalnum() and not Path(word).exists()


def _measure_base(model: Path, changes: list[str], only: str) -> dict[str, Any]:
    from etude.pipeline.find_model import find_model, prepare_device, recipe_of

    recipe, folder = recipe_of(model, changes), find_model(model)
    device = prepare_device(recipe)
    from etude.bench.base.model_under_test import ModelUnderTest
    from etude.bench.base.suite import evaluate_base

    tested = ModelUnderTest.open(folder, device, recipe.base.batch_tokens)
    names = [name.strip() for name in only.split(",") if name.strip()]
    return {"model": str(folder)} | evaluate_base(tested, recipe.base, names or None)


def _show_base_models(found: dict[str, Any]) -> None:
    from etude.bench.base.comparison import HEADERS, rows, texts_differ

    if "models" not in found:
        _show_base(found)
        return
    # Models as columns: there are more figures than models.
    lines = zip(HEADERS, *rows(found["models"]), strict=True)
    first, *rest = list(lines)
    table(first, rest)
    if warning := texts_differ(found["models"]):
        print(warning)


def _show_base(found: dict[str, Any]) -> None:
    rows: list[tuple[Any, ...]] = []
    if codebase := found.get("codebase"):
        rows.append(("codebase", "bits per byte", f"{codebase['bits_per_byte']:.4f}"))
        rows.append(("", "sum of nats", f"{codebase['nats']:.0f} over {codebase['bytes']} bytes of {codebase['code']}"))
    if tracking := found.get("tracking"):
        untouched = f"{tracking['distance']:.1f} characters ({tracking['untouched']:.1f} if no diff were heeded)"
        rows.append(("state tracking", "mean distance", untouched))
        rows.append(("", "right to the last character", f"{tracking['exact']:.1%} of {len(tracking['files'])} files"))
        rows.append(("", "bits per byte", f"{tracking['bits_per_byte']:.4f}"))
    if needle := found.get("needle"):
        rows.append(("needle", "exact", f"{needle['exact']:.1%}"))
        chance = f"{needle['probability']:.3f} (chance {1 / needle['candidates']:.3f}), mean rank {needle['rank']:.2f}"
        rows.append(("", "probability", chance))
    if fresh := found.get("fresh"):
        asked = f"{fresh['questions']} questions of {fresh['first']} to {fresh['last']}, chance {fresh['chance']:.1%}"
        rows.append(("fresh knowledge", "right", f"{fresh['accuracy']:.1%} of {asked}"))
    if serving := found.get("serving"):
        from etude.bench.base.comparison import serving_words

        rows.append(("serving", "weights", f"{serving['weights'] / 1e9:.3g} GB"))
        rows += [("", "with a context of", serving_words(each)) for each in serving["lengths"]]
    table(("", "", ""), rows)
    if needle:
        lengths = sorted({cell["length"] for cell in needle["places"]})
        cells = {(cell["depth"], cell["length"]): cell for cell in needle["places"]}
        grid = [
            (f"{depth:.0%}", *(_cell(cells[depth, length]) for length in lengths))
            for depth in sorted({depth for depth, _ in cells})
        ]
        table(("needle at", *(f"{length} tokens" for length in lengths)), grid)
        print("exact / probability among candidates")


def _cell(cell: dict[str, Any]) -> str:
    return f"{cell['exact']:.0%} / {cell['probability']:.2f}"

"""Commands about environments and sandboxes: `etude env install`, `etude sandbox bench`, `serve` and `pods`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.cli.console import Backend, FindLinks, Json, Overrides, Repository, StoreFolder, answer, print_next, table
from etude.core.errors import EtudeError

if TYPE_CHECKING:
    from etude.core.policy import Policy
    from etude.forge.install.command import InstallModel

NAMED = 10  # tests that are shown by name

env_app = typer.Typer(no_args_is_help=True, help="Install a repository with what its tests need, in a sandbox.")
sandbox_app = typer.Typer(no_args_is_help=True, help="Measure sandboxes, or offer them to other machines.")


@env_app.command("install")
def env_install(
    repo: Repository,
    overrides: Overrides = None,
    store: StoreFolder = None,
    find_links: FindLinks = None,
    suite_seconds: Annotated[float, typer.Option("--suite-seconds", min=1, help="Longest run of the tests.")] = 300.0,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Longest time for all of it.")] = 3600.0,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="Who installs: rules, a run or model (runs/quickstart), a server (http://host:8000), or a hosted one "
            "(openai:https://host/v1?model=NAME; the rest as endpoint.KEY=VALUE).",
        ),
    ] = "rules",
    rules_first: Annotated[
        bool, typer.Option("--rules-first", help="Let the policy act only where the rules fail.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Try what could not be installed before.")] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", hidden=True, help="As KEY=VALUE.")] = None,
    json: Json = False,
) -> None:
    """Install a repository with all that its tests need, and verify it; nothing of it runs outside a sandbox."""

    def work() -> dict[str, Any]:
        from etude.forge.install.command import install_repository

        model = None if policy == "rules" else _model(policy, [*(overrides or []), *(settings or [])])
        return install_repository(repo, store, find_links, suite_seconds, seconds, again, model, rules_first)

    def show(found: dict[str, Any]) -> None:
        verified = [(each["command"],) for each in found["commands"] if each["command"] in set(found["verified"])]
        if verified:  # the others ran on the way there; --json has them
            table(("these commands work in the environment",), verified)
        for note in found["notes"]:
            print(f"note: {note}")
        if found["ok"]:
            tests, known = found["tests"], ", installed before" if found["cached"] else ""
            print(f"{found['repo']} {found['version']}: {tests['passed']} tests pass, {tests['failed']} fail{known}")
            print(f"environment {found['digest']}")
            if tests["failed"]:
                named = found["failing"][:NAMED]
                more = f" and {len(found['failing']) - len(named)} more" if len(found["failing"]) > len(named) else ""
                print(f"These fail in the repository as it is, and are left out of tasks: {', '.join(named)}{more}")
            print_next(shlex.join(["etude", "tasks", "make", repo, "--out", f"tasks/{found['repo']}"]))
        else:
            print(f"{found['repo']} {found['version']} cannot be installed: {found['reason']}")
            if found["cached"]:
                print("This was found out before; --again tries anew.")
            if policy == "rules":
                print("A model may find what the rules do not; docs/tasks/install.md has other ways.")
                print_next(shlex.join(["etude", "env", "install", repo, "--policy", "RUN"]))

    answer(work, show, json)


def _model(policy: str, overrides: list[str]) -> InstallModel:
    """The model that a name means: one of ours with an engine of its own, one that a server has, or a hosted one."""
    from dataclasses import replace

    from etude.cli.agents import own_agent
    from etude.cli.chat_client import base_of, served_model
    from etude.core import recipe as recipes
    from etude.forge.install.command import InstallModel
    from etude.policies.table import hosted_policy, is_hosted, needs_no_model

    name = policy
    if policy.startswith(("http://", "https://")):
        name = f"openai:{base_of(policy)}?model={served_model(policy)}"
    if is_hosted(name):
        endpoint = replace(recipes.load(None, overrides).endpoint, form="text", ids=False)
        made = hosted_policy(name, endpoint, {})

        async def start() -> Policy:
            return made

        return InstallModel(start)
    if needs_no_model(policy):
        raise EtudeError(
            f"{policy!r} cannot install: give rules, a run or model, a server's address, or a hosted model as "
            "openai:https://host/v1?model=NAME"
        )
    agent = own_agent(Path(policy), overrides)
    context = min(agent.recipe.engine.max_length, agent.recipe.harness.limits.context_tokens)
    return InstallModel(agent.start, agent.setup.dialect, context)


@sandbox_app.command("bench")
def sandbox_bench(
    rounds: Annotated[int, typer.Option("--rounds", min=5, help="Times each thing is measured.")] = 40,
    sandbox: Backend = "local",
    json: Json = False,
) -> None:
    """Measure how long sandboxes take to start, reset and fork on this machine."""

    def work() -> dict[str, Any]:
        from etude.sandbox.bench import bench

        figures = bench(sandbox, rounds)
        return {"ok": figures.passed, **figures.to_json()}

    def show(found: dict[str, Any]) -> None:
        spreads = {name: value for name, value in found.items() if isinstance(value, dict) and "p50" in value}
        rows = []
        for name, spread in spreads.items():
            bar = found["bars"].get(name)
            cells = (f"{spread[p]:.2f} ms" for p in ("p50", "p95"))
            rows.append((name, *cells, "" if bar is None else f"{bar:g} ms"))
        table(("what", "p50", "p95", "bar"), rows)
        print(f"{found['starts_per_second']:.0f} starts each second; all bars reached: {found['passed']}")

    answer(work, show, json)


@sandbox_app.command("serve")
def sandbox_serve(
    listen: Annotated[
        str, typer.Option("--listen", help="HOST:PORT (port 0 takes a free one), or the path of a local socket.")
    ] = "127.0.0.1:7433",
    sandbox: Backend = "local",
    places: Annotated[int, typer.Option("--places", min=0, help="Sandboxes at once; 0 goes by memory.")] = 0,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the token; else the variable ETUDE_SANDBOX_TOKEN.")
    ] = None,
    store: StoreFolder = None,
    store_gb: Annotated[float, typer.Option("--store-gb", min=0.1, help="Layers that are kept.")] = 50.0,
    lease: Annotated[
        float, typer.Option("--lease", min=1, help="Seconds of silence after which a client's sandboxes end.")
    ] = 30.0,
    show: Annotated[list[str] | None, typer.Option("--show", help="A folder that layers may show, too.")] = None,
    idle: Annotated[
        float, typer.Option("--idle", min=0, help="Seconds without a client after which it ends; 0: it stays.")
    ] = 0.0,
) -> None:
    """Offer this machine's sandboxes to other machines until Ctrl-C (cluster.sandbox_hosts names it there)."""

    def work() -> dict[str, Any]:
        import asyncio

        from etude.sandbox.serve import read_token, serve_sandboxes
        from etude.sandbox.store.layers import default_store
        from etude.tasks.grading.grader import RUNNER

        given: dict[str, Any] = {"places": places, "lease": lease, "store_bytes": int(store_gb * 2**30), "idle": idle}
        given["shows"] = tuple(show or ())
        folder = store or default_store().parent / "sandbox-host"
        asyncio.run(serve_sandboxes(listen, sandbox, folder, read_token(token_file), (RUNNER,), **given))
        return {}

    answer(work, lambda _: None, False)


@sandbox_app.command("pods")
def sandbox_pods(
    image: Annotated[str, typer.Argument(help="Image with this release of etude.")],
    name: Annotated[
        str, typer.Option("--name", help="What cluster.sandbox_hosts names, as kubernetes:NAME.")
    ] = "etude",
    count: Annotated[int, typer.Option("--count", min=1, help="Pods.")] = 1,
    namespace: Annotated[str, typer.Option("--namespace", help="Else the pod's own, or default.")] = "",
    cpus: Annotated[str, typer.Option("--cpus", help="Of each pod, as Kubernetes writes it.")] = "4",
    memory: Annotated[str, typer.Option("--memory", help="Of each pod.")] = "8Gi",
    places: Annotated[int, typer.Option("--places", min=0, help="Sandboxes in each; 0 goes by memory.")] = 0,
    idle: Annotated[
        float, typer.Option("--idle", min=60, help="Seconds without a client after which a pod ends.")
    ] = 900.0,
    privileged: Annotated[
        bool, typer.Option("--privileged", help="For clusters without user namespaces for pods.")
    ] = False,
    pull_secret: Annotated[str, typer.Option("--pull-secret", help="Name of a secret for the image.")] = "",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the token; else the variable ETUDE_SANDBOX_TOKEN.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Only print the objects, without the token.")] = False,
) -> None:
    """Keep sandbox hosts as pods of a Kubernetes cluster until Ctrl-C."""

    def work() -> dict[str, Any]:
        import asyncio
        import json

        from etude.sandbox.kubernetes.manifest import Fleet, network_policy, pod
        from etude.sandbox.kubernetes.pods import keep_pods
        from etude.sandbox.serve import read_token

        fleet = Fleet(name, image, cpus, memory, places, "local", idle, privileged, pull_secret)
        if show:
            print(json.dumps([pod(fleet, f"{name}-0"), network_policy(fleet)], indent=2))
        else:
            asyncio.run(keep_pods(namespace, fleet, count, read_token(token_file)))
        return {}

    answer(work, lambda _: None, False)

"""Commands about environments: `etude env install`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.cli.console import FindLinks, Json, Overrides, Repository, StoreFolder, answer, table
from etude.core.errors import EtudeError

if TYPE_CHECKING:
    from etude.policies.endpoint.policy import EndpointPolicy

env_app = typer.Typer(no_args_is_help=True, help="Install repositories.")


@env_app.command("install")
def env_install(
    repo: Repository,
    overrides: Overrides = None,
    store: StoreFolder = None,
    find_links: FindLinks = None,
    suite_seconds: Annotated[float, typer.Option("--suite-seconds", min=1, help="Longest run of the tests.")] = 300.0,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Longest time for all of it.")] = 3600.0,
    policy: Annotated[
        str, typer.Option("--policy", help="rules, or a hosted model: openai:https://host/v1?model=NAME.")
    ] = "rules",
    again: Annotated[bool, typer.Option("--again", help="Try what could not be installed before.")] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", hidden=True, help="As KEY=VALUE.")] = None,
    json: Json = False,
) -> None:
    """Install a repository with all that its tests need, and verify it; nothing of it runs outside a sandbox."""

    def work() -> dict[str, Any]:
        from etude.forge.install.command import install_repository

        model = None if policy == "rules" else _hosted(policy, [*(overrides or []), *(settings or [])])
        return install_repository(repo, store, find_links, suite_seconds, seconds, again, model)

    def show(found: dict[str, Any]) -> None:
        verified = set(found["verified"])
        rows = [("yes" if each["command"] in verified else "", each["command"]) for each in found["commands"]]
        table(("verified", "command"), rows)
        for note in found["notes"]:
            print(f"note: {note}")
        if found["ok"]:
            tests, known = found["tests"], ", installed before" if found["cached"] else ""
            print(f"{found['repo']} {found['version']}: {tests['passed']} tests pass, {tests['failed']} fail{known}")
            print(f"environment {found['digest']}")
            if tests["failed"]:
                print("Tests that fail as they came are left out of tasks; they judge nobody.")
            print(f"next: etude tasks make {shlex.quote(repo)} --out tasks/{found['repo']}")
        else:
            print(f"{found['repo']} {found['version']} cannot be installed: {found['reason']}")
            if found["cached"]:
                print("This was found out before; --again tries anew.")

    answer(work, show, json)


def _hosted(policy: str, overrides: list[str]) -> EndpointPolicy:
    from dataclasses import replace

    from etude.core import recipe as recipes
    from etude.policies.table import hosted_policy, is_hosted

    if not is_hosted(policy):
        raise EtudeError(
            f"{policy!r} cannot install: give rules, or a hosted model as openai:https://host/v1?model=NAME"
        )
    return hosted_policy(policy, replace(recipes.load(None, overrides).endpoint, form="text", ids=False), {})

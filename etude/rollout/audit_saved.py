"""Saved rollouts audited: a verdict on each, by rules or a hosted model, or figures of how they behave.

Reads rollouts and, unless asked to quarantine broken tasks, changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from etude.audit.auditor import Rules, audit
from etude.audit.base import Ruling
from etude.audit.behaviour_metrics import behaviour
from etude.audit.blind_view import BlindView, open_blind_view, open_trajectory
from etude.audit.quarantine import quarantine
from etude.audit.table import build_detectors
from etude.core.errors import EtudeError
from etude.core.policy import Policy
from etude.core.progress import track
from etude.core.settings import EndpointSettings
from etude.harness.trajectory_files import FACTS, load_trajectory
from etude.policies.endpoint.policy import EndpointPolicy
from etude.policies.table import hosted_policy, is_hosted
from etude.rollout.store import OUTCOME, load_rollout, saved_rollouts
from etude.tasks.format.task import Task


def audit_saved(
    paths: Sequence[Path], rules: Sequence[str], auditor: str, quarantine_broken: bool
) -> dict[str, dict[str, Any]]:
    """File or folder of each rollout -> its verdict and findings."""
    policy = _auditor(rules, auditor)
    rollouts = list(_rollouts(paths))

    async def work() -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        try:
            with track("auditing", total=len(rollouts), unit="rollouts") as bar:
                for name, folder in rollouts:
                    view, task = _open(folder)
                    ruling = await _rule_on(view, policy)
                    if quarantine_broken and task is not None and ruling.verdict == "broken task":
                        _quarantine(task, ruling)
                    found[name] = {"verdict": ruling.verdict, "findings": [asdict(each) for each in ruling.findings]}
                    bar.advance(1)
        finally:
            if isinstance(policy, EndpointPolicy):
                await policy.close()
        return found

    return asyncio.run(work())


def behaviour_of(paths: Sequence[Path]) -> dict[str, dict[str, float]]:
    """Folder -> figures of how its rollouts behave, and what the rules say of them."""
    rules, found = Rules(), {}
    for path in paths:
        views = [_open(folder)[0] for _, folder in _rollouts([path])]
        found[str(path)] = behaviour(views, [rules.inspect(view) for view in views])
    return found


def _auditor(rules: Sequence[str], auditor: str) -> Policy:
    if is_hosted(auditor):
        if rules:
            raise EtudeError("give rules or a model as the auditor, not both")
        return hosted_policy(auditor, EndpointSettings(), {})
    if auditor != "rules":
        raise EtudeError(f"the auditor is rules, or openai:URL?model=NAME, not {auditor!r}")
    return Rules(build_detectors([{"use": rule} for rule in rules], "rule"))


async def _rule_on(view: BlindView, policy: Policy) -> Ruling:
    return policy.inspect(view) if isinstance(policy, Rules) else await audit(view, policy)


def _rollouts(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """(name in the answer, folder) of every rollout that is meant."""
    for path in paths:
        if path.is_file():  # a file of a saved rollout
            yield str(path), path.parent
        elif (path / OUTCOME).is_file() or (path / FACTS).is_file():
            yield str(path), path
        else:
            below = [(str(folder), folder) for folder in saved_rollouts(path)]
            below = below or [(str(file.parent), file.parent) for file in sorted(path.glob(f"*/{FACTS}"))]
            if not below:
                raise EtudeError(f"{path} holds no saved rollout; `etude rollout TASK --save {path}` makes one")
            yield from below


def _open(folder: Path) -> tuple[BlindView, Task | None]:
    """The blind view of a saved rollout; of a trajectory without its outcome, what its messages say."""
    if not (folder / OUTCOME).is_file():
        return open_trajectory(load_trajectory(folder)), None
    saved = load_rollout(folder)
    if saved.trajectory is None:  # the machinery failed before anything was done
        return BlindView(saved.task.instruction), saved.task
    return open_blind_view(saved.task, saved.trajectory, saved.changes), saved.task


def _quarantine(task: Task, ruling: Ruling) -> None:
    if task.files.directory is not None:
        why = next(finding.message for finding in ruling.findings if finding.level == "broken task")
        quarantine(task.files.directory, why)

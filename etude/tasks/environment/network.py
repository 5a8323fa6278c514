"""What an agent may reach over a network: the hosts of the task's allow-list through the egress proxy, or nothing.

`agent.network_mode` counts before `environment.network_mode`. Only "allowlist" opens anything, and only to names: the
proxy knows no addresses, so those of a list stay closed. Grading never has a network. A task may be a stranger's: what
it asks for is opened only as far as the recipe's `harness.allowed_hosts` grants it.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Literal

from etude.core.errors import EtudeError
from etude.sandbox.base import Egress
from etude.sandbox.egress.policy import AllowedHost
from etude.tasks.format.task import Task


def task_network(task: Task) -> Egress | Literal[False]:
    tables = (task.config.agent, task.config.environment)
    decided = next((table for table in tables if table.network_mode is not None), None)
    if decided is None or decided.network_mode != "allowlist":
        return False
    names = []
    for host in decided.allowed_hosts:
        with suppress(EtudeError):  # an address, or a block of them
            AllowedHost.read(host)
            names.append(host)
    return Egress(tuple(names)) if names else False


def granted_network(asked: Egress | Literal[False], allowed: Collection[str]) -> Egress | Literal[False]:
    """Of what a task asks for, the names that the recipe allows; `*` allows all of them."""
    if asked is False:
        return False
    names = tuple(host for host in asked.hosts if host in allowed or "*" in allowed)
    return Egress(names) if names else False

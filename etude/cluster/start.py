"""Opens the placement that a recipe names: processes of this machine, or programs on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from etude.cluster.local import LocalPlacement
from etude.cluster.placement import ENGINE, LEARNER, WORKER, Placement, Role
from etude.core.cluster_settings import ClusterSettings


def roles_of(settings: ClusterSettings, device: str) -> list[Role]:
    """What a run of reinforcement learning starts."""
    gpus = int(device.startswith("cuda"))
    found = [
        Role(LEARNER, settings.learner.ranks, gpus, "together"),
        Role(ENGINE, settings.engines + settings.spare_engines, gpus),
        Role(WORKER, settings.rollout_workers),
    ]
    return [role for role in found if role.count]


async def open_placement(
    settings: ClusterSettings, device: str, home: Path, lineage: Callable[[], int], say: Callable[[str], None]
) -> Placement:
    """`home` is a folder that all nodes share, where programs say how they are reached."""
    if settings.kind == "local":
        return LocalPlacement()
    from etude.cluster.ray_placement import RayPlacement

    placement = RayPlacement(settings, home, lineage, say)
    try:
        await placement.open(roles_of(settings, device))
    except BaseException:
        await placement.close()
        raise
    return placement

"""Opens the placement that a recipe names: processes of this machine, or programs on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from etude.cluster.local import LocalPlacement
from etude.cluster.placement import ENGINE, LEARNER, WORKER, Placement, Role
from etude.cluster.vllm import interpreter
from etude.core.cluster_settings import ClusterSettings
from etude.core.errors import EtudeError

ROUNDED = {"fp8": "0.02", "int4": "0.09"}  # nats that log-probabilities of a small model differ by, on average
EXACT = 1e-3  # a smaller bound of those differences is meant for equal weights


def roles_of(settings: ClusterSettings, device: str) -> list[Role]:
    """What a run of reinforcement learning starts."""
    gpus = int(device.startswith("cuda"))
    found = [
        Role(LEARNER, settings.learner.ranks, gpus, "together"),
        Role(ENGINE, settings.engines + settings.spare_engines, gpus),
        Role(WORKER, settings.rollout_workers),
    ]
    return [role for role in found if role.count]


def check_vllm(settings: ClusterSettings, eval_every: int) -> None:
    """Refuses settings that vLLM cannot be used with."""
    if settings.engine != "vllm":
        return
    if settings.kind == "ray":
        raise EtudeError(
            "vLLM is started on this machine only: set cluster.kind = 'local', or cluster.engine = 'etude'"
        )
    if not settings.weights or eval_every:
        raise EtudeError(
            "cluster.engine = 'vllm' needs cluster.weights (a directory or an address), and rl.eval_every = 0: it "
            "holds one version at a time, so evaluate with `etude bench` afterwards"
        )


def check_published(settings: ClusterSettings, probe_mean: float) -> None:
    """Refuses weights in fewer bits where nobody reads them, or where the first probe would stop the run for them."""
    kind = settings.weights_dtype
    if kind not in ROUNDED:
        return
    if not settings.weights:
        raise EtudeError(
            f"cluster.weights_dtype = '{kind}' is about weights in cluster.weights: name a directory or a bucket"
        )
    if probe_mean < EXACT:
        raise EtudeError(
            f"with cluster.weights_dtype = '{kind}' engines sample from rounded weights, not from the learner's, and "
            f"rl.probe_mean = {probe_mean:g} would stop the run: set rl.probe_mean, rl.probe_p99, rl.probe_max and "
            f"rl.probe_k3 to what rounding may cost (a mean of {ROUNDED[kind]} in a small model)"
        )


def check_programs(settings: ClusterSettings) -> None:
    """Refuses what the section needs and this machine lacks; asked before the first stage of a run begins."""
    if settings.kind == "ray" and find_spec("ray") is None:
        raise EtudeError("cluster.kind = 'ray' needs Ray, which is not installed here: pip install 'etude[ray]'")
    if settings.engine == "vllm":
        interpreter(settings.vllm_python)
    if settings.weights and find_spec("zstandard") is None:
        raise EtudeError("cluster.weights needs zstandard, which is not installed here: pip install 'etude[weights]'")
    if "://" in settings.weights and find_spec("obstore") is None:
        raise EtudeError(f"cluster.weights = {settings.weights!r} needs obstore: pip install 'etude[weights]'")


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

"""Every setting of where things run: the section [cluster] of a recipe. From laptop to cluster only this changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from etude.core.settings import setting

WeightsDtype = Literal["", "float32", "bfloat16", "fp8", "int4"]


@dataclass(frozen=True)
class LearnerRanks:
    """How many processes the learner is (one GPU each, or cores), and how they divide the work."""

    ranks: int = setting(1, "all of them; 1 trains in one process", least=1)
    replicate: int = setting(1, "copies of the whole model", least=1)
    shard: int = setting(0, "ranks that divide one copy and read different data; 0 takes what is left", least=0)
    expert: int = setting(1, "ranks, of those that divide one copy, over which each layer's experts lie", least=1)
    context: int = setting(1, "ranks that compute one sequence together", least=1)
    dispatch: Literal["same", "bfloat16", "fp8"] = setting(
        "same", "numbers in which tokens travel to experts of other ranks: as they are, bfloat16, or 8 bits with scales"
    )
    seconds: float = setting(600.0, "longest that ranks wait for one another; then the run stops", least=1)


@dataclass(frozen=True)
class ClusterSettings:
    """Where things run, and how many of them."""

    kind: Literal["local", "ray"] = setting(
        "local", "local: processes on this machine; ray: programs on the nodes of a Ray cluster"
    )
    address: str = setting("", "of the Ray cluster to join, as ray status takes it; empty starts one here")
    cpus: float = setting(1.0, "processors that Ray counts for each program", least=0.01)
    place_seconds: float = setting(300.0, "that Ray has to find room for a program", least=1.0)
    lease_seconds: float = setting(
        10.0, "after which a program ends whose supervisor does not renew its right to run", least=3.0
    )
    orphan_seconds: float = setting(
        900.0, "that programs on Ray wait for another command after theirs was killed; then they end", least=10.0
    )
    engine: Literal["etude", "vllm"] = setting(
        "etude", "who samples: our own engine, on one GPU or CPU each; or vLLM, which needs cluster.weights"
    )
    vllm_python: str = setting("", "interpreter of the environment that vLLM and this package are installed in")
    engines: int = setting(1, "engine processes that sample, each with the whole model", least=1)
    spare_engines: int = setting(
        0,
        "further engine processes with the same weights, one of which takes the place of an engine that dies",
        least=0,
    )
    rollout_workers: int = setting(0, "processes that run rollouts; 0 runs them in the orchestrator", least=0)
    sandbox_hosts: list[str] = setting(
        [],
        "HOST:PORT of each machine that runs sandboxes (etude sandbox serve), or kubernetes:NAME for the pods of etude "
        "sandbox pods; empty: this machine",
    )
    weights: str = setting(
        "",
        "where the learner publishes its weights for the engines: a directory that all of them see, or an address such "
        "as s3://bucket/prefix; empty shares the memory of this machine",
    )
    weights_base_every: int = setting(20, "versions after which cluster.weights gets a full copy again", least=1)
    weights_dtype: WeightsDtype = setting(
        "",
        "type of the published weights; empty publishes as they are served: bfloat16 on a GPU, float32 on a CPU; fp8 "
        "and int4 round the matrices of blocks, so engines sample from other weights than the learner trains",
    )
    learner: LearnerRanks = setting(LearnerRanks(), "the learner's ranks")
    restarts: int = setting(
        3,
        "times that dead processes are started again before a step is trained, the learner before a checkpoint is "
        "saved; 0 ends the run",
        least=0,
    )
    save_tokens: int = setting(
        8,
        "tokens of an answer under way after which they are saved for a resume; 0 saves finished turns only",
        least=0,
    )

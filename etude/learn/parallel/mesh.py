"""The process groups of a layout: one mesh for dense weights, one for experts, and the groups that share sequences.

Ranks are numbered with the replica outermost, then the shard, then the context: ranks that compute one sequence
together are neighbours, and so are those that divide the experts of a layer.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from etude.learn.parallel.layout import Layout

REPLICATE, SHARD, EXPERT_SHARD, EXPERT, CONTEXT = "replicate", "shard", "expert_shard", "expert", "context"


class Meshes:
    """Made on every rank after `init_process_group`, with the same layout.

    `dense` has dimensions (replicate, shard), where shard covers all ranks that hold one copy, context ranks too.
    `expert_shard` has (replicate, expert_shard) and `expert` one dimension: together the same ranks once more. No wait
    for other ranks is longer than `seconds`.
    """

    def __init__(self, layout: Layout, device: str, seconds: float) -> None:
        self.layout, self.world, self.rank = layout, dist.get_world_size(), dist.get_rank()
        copies, sharing = layout.replicate, layout.sharing
        self.dense = init_device_mesh(device, (copies, sharing), mesh_dim_names=(REPLICATE, SHARD))
        sizes = (copies, sharing // layout.expert, layout.expert)
        sparse = init_device_mesh(device, sizes, mesh_dim_names=(REPLICATE, EXPERT_SHARD, EXPERT))
        self.expert_shard, self.expert = sparse[REPLICATE, EXPERT_SHARD], sparse[EXPERT]
        groups = [*self.dense.get_all_groups(), *sparse.get_all_groups()]
        self.context: dist.ProcessGroup | None = None
        if layout.context > 1:
            sequences = init_device_mesh(device, (layout.data, layout.context), mesh_dim_names=("data", CONTEXT))
            self.context = sequences.get_group(CONTEXT)
            groups += sequences.get_all_groups()
        self.data_rank, self.data_ranks = self.rank // layout.context, layout.data
        # A mesh gives its groups the deadlines of torch, 10 or 30 minutes, whatever that of the first group is.
        for group in groups:
            _set_pg_timeout(timedelta(seconds=seconds), group)


def sharding(mesh: DeviceMesh) -> DeviceMesh:
    """The mesh as `fully_shard` should see it: without the dimension of replicas where there is only one."""
    names = mesh.mesh_dim_names
    assert names is not None
    return mesh if mesh.size(0) > 1 else mesh[names[1]]

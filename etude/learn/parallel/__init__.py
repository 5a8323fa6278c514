"""The learner on several ranks: meshes, sharded weights and gradients, checkpoints for any number of ranks.

Read in this order: layout (how many ranks do what), mesh (their process groups), host_group (bytes and numbers between
ranks), wire (rows to other ranks and back), experts (divided over ranks), context (sequences that ranks compute
together), hsdp (weights divided over ranks), manifest (what all ranks know of a batch), rounds (one micro-batch on each
rank), muon (matrices put together on owners), shard_optimiser, messages, rank_learner (the verbs on one rank),
checkpoint, lead (the verbs from rank 0), launch (the processes).
"""

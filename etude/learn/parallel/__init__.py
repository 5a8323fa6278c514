"""The learner on several ranks: meshes, sharded weights and gradients, checkpoints that load on another number of ranks.

Read in this order: layout (how many ranks do what).
"""

"""The learner on several ranks: meshes, sharded weights and gradients, checkpoints for any number of ranks.

Read in this order: layout (how many ranks do what), mesh (their process groups).
"""

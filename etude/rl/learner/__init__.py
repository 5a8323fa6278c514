"""The learner in a process of its own: the orchestrator never loads torch, and a learner that dies takes nothing along.

Read in this order: messages (what is said, as bytes), process (the learner's side), client (its verbs from outside).
"""

"""Rollouts in processes of their own. Read in this order: messages (what is asked and answered), setup (how rollouts
are set up), ready_rollouts (those that wait for the learner), placed_tasks (where workers find tasks), process (a
worker: sandboxes, harness, grading), pool (the workers as the loop sees them).
"""

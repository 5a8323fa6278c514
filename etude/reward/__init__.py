"""Rewards: what a graded and audited rollout is worth, as a weighted sum of parts that are logged one by one.

In reading order: `base` (what a part sees and is), `compose` (parts by name, weighted), `function` (a plain function as
a part), `tests` (whether it is solved), `effort` (what it cost), `diff_size` (how much it changed), `ending` (who ended
it), `behaviour` (how often it did something), `hack_penalty` (did it cheat).
"""

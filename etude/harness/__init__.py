"""The agent: a policy that acts in a sandbox through tools. The same in training, evaluation and use.

In reading order: `loop` (one rollout from prompt to stop), `trajectory` (what it leaves behind) and `files` (how that
is saved and read again), `execute` (from a sampled call to an observation), `tools/` (what the agent can do, one file
each), `workbench` (what a tool may touch), `shorten` (long text cut), `prompt` (the first words), `spelling` (turns as
plain text, for policies without token ids), `metrics` (how reliable the tools are), `failures` (the error taxonomy).

Knows a `Policy` and a `Sandbox`, never an engine, a task or a reward.
"""

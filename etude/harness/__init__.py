"""The agent: a policy that acts in a sandbox through tools. The same in training, evaluation and use.

In reading order: `loop` (one rollout from prompt to stop), `conversation` (what the policy sees, as tokens), `summary`
(going on when a context is full), `trajectory` (what it leaves behind) and `trajectory_files` (how that is saved and
read again), `tool_calls` (from sampled calls to observations), `tools/` (what the agent can do, one file each),
`tool_context` (what a tool may touch), `truncate` (long text cut), `prompt` (the first words), `text_turns` (turns as
plain text, for policies without token ids), `hinted` (a hint above a turn, as tokens), `metrics` (how reliable the
tools are), `sub_agents` (work in a context of its own), `code_search/` (code found by questions), `failures` (the error
taxonomy), `atif` (trajectories for other people's viewers).

Knows a `Policy` and a `Sandbox`, never an engine, a task or a reward.
"""

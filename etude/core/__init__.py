"""What every room stands on, without torch.

In reading order: `errors` (the one exception for people), `settings`, `rl_settings` and `cluster_settings` (every
setting of a recipe) and `recipe` (TOML to settings and back), `component` (small classes that a recipe names),
`renamed` (old names on disk), `durable` (files that survive a kill), `run` (a run directory, written) and `run_files`
(read), `sinks/` (where its metrics go beside that), `progress`, `policy` (the types that sampler and harness share),
`terms` (what the rollouts of a group are told alike, and how that is drawn), `transport` (messages between our
processes), `token_files` (numbers in files, read in slices), `tcp_address` (where one listens that is reached over a
network), `frame_calls` (many calls on one connection), `process` and `child_process` (this process, and ours beside
it), `version`.
"""

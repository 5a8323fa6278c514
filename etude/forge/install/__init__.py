"""How a repository becomes an environment: commands, tries at them, and a verdict that no agent gives.

In reading order: `pip_settings` (where packages come from), `sandbox_files` (files out of a sandbox), `fetch_package`,
`git_files` and `checkout` (a repository as we keep it); `project/` (what it says about itself), `target_commands`
(commands and what they should print), `rules/` (agents that need no model), `strip_and_lock` (runs inside) and
`make_layer` (the environment's layer and lock), `result` (what came of it, and what is remembered), `verify`;
`agent_rollout` (an agent installs, by rules or with a model), `python_installer`, `javascript/`, `install` (one way for
all languages), `add_build_backend` (the same environment with what builds the repository), `command`.
"""

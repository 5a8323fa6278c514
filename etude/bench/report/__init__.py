"""A run as one static HTML file that can be mailed: no script, nothing loaded from anywhere, light and dark.

In reading order: `page` (the whole), `markdown` (the same in short), `tables`, `figures` (which curves),
`agent_figures` (those of summaries, effort, behaviours and feedback), `trajectories` (which rollouts, and how they
read), `training_rollouts` (what the agent did in training), `charts` (SVG), `html` (everything escaped), `style.css`.
"""

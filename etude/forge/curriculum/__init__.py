"""Which task comes next: `sources` (where tasks come from, by name), `curriculum` (as hard as the policy needs them),
`mixture` (several sources by weights), `questions` (answered without a sandbox), `composite_tasks` (two tasks as one
harder task)."""

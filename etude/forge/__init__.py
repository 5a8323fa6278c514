"""Making tasks.

In reading order: `words` (what katas are made of, and what is held out), `draft` (what a family is), `families/`
(the families), `repository` (drafts to files and tests), `instructions` (three registers), `katas` (tasks, endless),
`sources` (where tasks come from, by name);
`bodies` (functions in source text), `scripted` (policies that follow a script: reference, null, stub), `cheats/`.
For tasks of real repositories: `suite` (one run of a repository's tests), `clock` (on another day), `gates` (what a
made task has to pass).
"""

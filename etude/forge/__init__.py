"""Making tasks.

In reading order: `katas/` (small generated tasks, without end), `leaks/` (is anything that was deleted still to be
found?), `environments/` (an installed repository and runs of its tests), `install/` (from a repository to its
environment), `gates/` (what a made task has to pass), `languages/` (what has to be known about a repository), `steps/`
(what origins share), `origins/` (a folder for each way to make a task), `curriculum/` (where tasks come from, and which
is asked next), `pipeline/` (the whole run) and `ladder/` (tasks of one token or a few lines, for small models). Each
folder imports only earlier ones.
"""

"""Tasks from a real repository, the whole run.

In reading order: `make_task` (one candidate on its way to a task), `journal` (what was tried and what came of it),
`split` (which tasks are for training and which are held out), `make` (candidates of all origins in turns, until there
are enough tasks), `command` (what `etude tasks make` calls).
"""

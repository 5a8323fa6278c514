"""The ladder to real repositories: tasks of one token or a few lines that a small model can learn.

In reading order: `rungs` (what is wrong and what is named), `propose` (candidates, drawn evenly), `instruct` (what is
asked), `answers` (what tests compare, recorded once for a package), `check` (the gates), `make` (a package's tasks),
`command` (what `etude tasks ladder` calls), `source` (the tasks in a recipe), `invert_baseline` (the trivial baseline),
`mends` (practice without tests), `mend_text` (the same as training text).
"""

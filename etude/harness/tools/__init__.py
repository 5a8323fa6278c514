"""What the agent can do, one tool a file.

Usual ones: read, edit, write, list, glob, grep, run, todo, finish. Those that a recipe names: delete, lints (with
`python_problems`, its linter), background, search (of code, by questions), docs,
agent (a sub-agent), service (issues, logs, metrics).

`base` says what a tool is, `table` finds tools by their names in a recipe. How to add one: docs/extend/add-a-tool.md.
"""

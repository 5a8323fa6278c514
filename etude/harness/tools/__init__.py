"""What the agent can do, one tool a file: read, edit, write, list, glob, grep, run, todo, finish.

`base` says what a tool is, `table` finds tools by their names in a recipe. How to add one: docs/extend/add-a-tool.md.
"""

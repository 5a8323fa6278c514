"""Where tasks come from: a folder for each origin, found by `table`. No origin imports another.

`base` (the protocol: propose, prove, instruct, write), `table` (the registry); then the origins: `deletion` (code is
missing), `bug` (code is wrong), `commit` (a commit is undone), `question` (something to find out), `test_writing`,
`docstrings`, `refactoring` (another name or place) and `packaging` (the configuration that builds a distribution).
"""

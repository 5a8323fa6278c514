"""What the forge knows about programming languages, each behind one protocol.

In reading order: `base` (the protocol: a repository, its symbols, its tests), `edits` (texts edited by place),
`python/`, `javascript/`, `table` (which language a repository is of).
"""

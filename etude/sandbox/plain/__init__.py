"""The plain backend: a folder instead of a sandbox, for machines without namespaces.

- `host.py`          the folder as a sandbox, and its programs
- `supervisor.py`    the process that limits one program and ends all that it started
"""

"""The sandbox: where a program runs that nobody trusts. One protocol, several backends.

Reading order:

- `base.py`      the protocol and its nouns: Host, Sandbox, Process, Layer, Snapshot, Limits, Result, Change
- `hosts.py`     a backend by its name
- `layers.py`    the store of layers and snapshots, by content; refuses hostile trees
- `changes.py`   what a sandbox changed: listed, packed into one file, unpacked again
- `local.py`     the local backend as the orchestrator sees it: asyncio, one socket for each sandbox
- `launcher.py`  the one small process that makes sandboxes on request
- `rootfs.py`    the root that a program sees: overlay, system folders, /proc, /dev
- `init.py`      process 1 of a sandbox: starts programs, ends them, answers for files
- `programs.py`  one program under its supervisor: descriptors, limits, no privileges, exec
- `seccomp.py`, `kernel.py`, `cgroups.py`, `identity.py`, `wire.py`  what those stand on
- `plain.py`     the weaker backend for machines without namespaces, asked for by name
- `bench.py`     how fast it is
"""

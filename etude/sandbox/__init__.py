"""The sandbox: where a program runs that nobody trusts. One protocol, several backends.

Reading order:

- `base.py`           the protocol and its nouns: Host, Sandbox, Process, Layer, Snapshot, Frozen, Limits, Result
- `hosts.py`          a backend by its name
- `layers.py`         the store of layers and snapshots, by content; `importing.py` refuses hostile trees
- `local.py`          the local backend as the orchestrator sees it; `local_sandbox.py` one sandbox and its programs
- `launcher.py`       the one small process that makes sandboxes on request
- `rootfs.py`         the root that a program sees: overlay, system folders, /proc, /dev
- `init.py`           process 1 of a sandbox: starts programs, ends them, answers for files
- `programs.py`       one program under its supervisor: descriptors, limits, no privileges, exec
- `frozen.py`         sandboxes that were frozen, in the store; `memory.py` CRIU, which keeps and brings back programs
- `upper.py`          what an overlay's upper folder says was changed; `packed.py` the same in one file, and back
- `seccomp.py`, `kernel.py`, `cgroups.py`, `identity.py`, `wire.py`, `channel.py`   what those stand on
- `plain.py`          the weaker backend, asked for by name; with `supervise.py` and `copies.py`
- `docker.py`         the backend of containers; `docker_sandbox.py` one of them, `docker_programs.py` its programs,
                      `docker_files.py` its files, `docker_engine.py` docker or podman
- `bench.py`          how fast it is
"""

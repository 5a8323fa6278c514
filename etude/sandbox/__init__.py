"""The sandbox: where a program runs that nobody trusts. One protocol, several backends, a folder for each.

Reading order:

- `base.py`            the protocol and its nouns: Host, Sandbox, Process, Layer, Snapshot, FrozenSandbox, SandboxLimits
- `hosts.py`           a backend by its name, or a class of one's own
- `backend.py`         what every backend does alike: `run` over the start of a program, `diff`, `snapshot`, closing
- `replace_text.py`    a piece of a file replaced in one round trip
- `streams.py`         the asyncio ends of a program's pipes
- `store/`             layers, snapshots and frozen sandboxes, by content; hostile trees are refused
- `local/`             Linux namespaces: launcher, init, root filesystem, confinement of programs, CRIU
- `docker/`            containers of docker or podman
- `remote/`            sandboxes of other machines: the server there, the client here, placement over several
- `kubernetes/`        hosts of that kind as pods: made, replaced and found
- `egress/`            the one way out of a sandbox with an allow-list of hosts: a proxy on its loopback
- `serve.py`           `etude sandbox serve`: a backend of this machine behind that server
- `plain/`             the weaker backend without isolation, asked for by name
- `environment.py`, `identity.py`    what a program finds, and whose files and processes a sandbox's are outside
- `program_exec.py`, `process_table.py`    exec with limits, and /proc; for `local/` and `plain/`
- `sentinel.py`        whether a host still works, when a sandbox of it died
- `bench.py`           how fast it is
"""

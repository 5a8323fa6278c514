"""The local backend: sandboxes made of Linux namespaces.

Reading order:

- `host.py`            the orchestrator's side: starts the launcher, makes sandboxes; `sandbox.py` one of them
- `launcher.py`        the one small process that makes sandboxes on request
- `rootfs.py`          the root that a program sees: overlay, system folders, /proc, /dev
- `host_folders.py`    which of the host's folders are shown, and taken without what is mounted below them
- `sandbox_users.py`, `machine_files.py`    an outside user for each sandbox; devices, and what stands in for counters
- `init.py`            process 1 of a sandbox: starts programs, ends them, answers for files
- `program_start.py`   one program, with or without a supervisor: descriptors, limits, no privileges, exec
- `criu.py`            programs with their memory into files and back; `find_criu.py` the host's CRIU
- `cgroups.py`, `seccomp.py`, `kernel.py`    limits of a whole sandbox, the system call filter, raw system calls
- `wire.py`, `channel.py`    messages over the sockets, and the orchestrator's end of one
"""

"""The remote backend: sandboxes of other machines, over TCP or a local socket.

Reading order:

- `messages.py`        what client and server say to each other, and how errors travel
- `pressure.py`        how busy this machine is: places, memory, the kernel's pressure figures
- `server.py`          `etude sandbox serve`: the sandboxes of one machine for clients with the token; leases
- `layer_transfer.py`  layers and snapshots from one store to another, checked by their digests
- `machine.py`         one such machine as a client sees it: its sessions, its state, what it holds
- `sandbox.py`         a sandbox and a program there, by the usual protocol
- `placement.py`       which machine gets the next sandbox
- `host.py`            all machines of a run as one host: placement, cordons, starts elsewhere
"""

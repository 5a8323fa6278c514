"""An orchestrator for the tests that kill it: many sandboxes, each with programs that would stay. A script.

`python orphans.py STORE COUNT MARKER` prints one JSON line when everything runs, then waits to be killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from etude.sandbox.local.host import LocalHost
from etude.sandbox.store.layers import Store


async def main(folder: Path, count: int, marker: str) -> None:
    store = Store(folder)
    layer = store.add_files({"a.txt": b"a"})
    host = await LocalHost.open(store)
    sandboxes = await asyncio.gather(*(host.start([layer]) for _ in range(count)))
    daemon = f"(setsid sleep {marker} &) ; setsid nohup sleep {marker} >/dev/null 2>&1 & exec sleep {marker}"
    await asyncio.gather(*(sandbox.spawn(["sh", "-c", daemon]) for sandbox in sandboxes))
    with store.scratch() as half_made:  # and something in the middle of being stored
        (half_made / "file").write_bytes(b"half")
        print(json.dumps({"pid": os.getpid(), "launcher": host.launcher_pid}), flush=True)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))

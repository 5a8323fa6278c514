"""Whether Harbor's own models read what we write: task directories and ATIF documents. Prints one JSON object.

Harbor needs Python 3.12, so this runs in an environment of its own, which need not have etude:

    python3.12 -m venv /tmp/harbor && /tmp/harbor/bin/pip install harbor==0.24.0
    etude tasks katas /tmp/katas --count 20 && etude rollout /tmp/katas/... --save /tmp/tries && etude export ...
    /tmp/harbor/bin/python benchmarks/harbor_models.py /tmp/katas /tmp/atif
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    from harbor.models.task.task import Task
    from harbor.models.trajectories import Trajectory

    found = {"tasks": 0, "documents": 0, "refused": {}}
    for root in map(Path, sys.argv[1:]):
        for config in sorted(root.rglob("task.toml")):
            try:
                Task(config.parent)
                found["tasks"] += 1
            except Exception as error:  # whatever Harbor thinks is wrong is what we want to see
                found["refused"][str(config.parent)] = f"{type(error).__name__}: {error}"[:300]
        for document in sorted(root.rglob("trajectory*.json")):
            try:
                Trajectory.model_validate_json(document.read_bytes())
                found["documents"] += 1
            except Exception as error:
                found["refused"][str(document)] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps({"ok": not found["refused"], **found}))
    return bool(found["refused"])


if __name__ == "__main__":
    sys.exit(main())

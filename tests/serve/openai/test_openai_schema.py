"""schemathesis over /openapi.json: bodies made from the schema are answered, all others refused, none breaks anything.

`benchmarks/serve_soak.py` tells what the server does under load; here it is what it does with odd requests.
`benchmarks/serve_fuzz.py` is a longer run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

# A conversation may fit the schema and still make no sense: a result that answers no call, arguments that are no JSON.
# A body of /v1/responses and the messages of /tokenize are validated as chats.
LOOSE = ("/v1/chat/completions", "/v1/responses", "/tokenize")
SETTINGS = "".join(
    f'[[operations]]\ninclude-path = "{path}"\nchecks.positive_data_acceptance.enabled = false\n' for path in LOOSE
)


def test_every_request_gets_the_answer_that_the_schema_promises(served: Any, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
    command += ["--config-file", str(tmp_path / "schemathesis.toml"), "run", f"{served.address}/openapi.json"]
    command += ["-H", f"Authorization: Bearer {served.key}", "--phases", "coverage,fuzzing", "--max-examples", "20"]
    command += ["--seed", "1", "--request-timeout", "60", "--generation-database", "none"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "9 selected / 9 total" in done.stdout

"""schemathesis over a server's OpenAPI schema for a given time; `serve_soak.py` runs it beside its crowd.

    python benchmarks/serve_fuzz.py http://127.0.0.1:8000 [--seconds 60]      (the key comes from ETUDE_API_KEY)

Requests that fit the schema and requests that do not, in turns, for every operation. Each answer must have a status and
a body that the schema promises, none may be a failure of the server, and what does not fit must be refused. Prints one
JSON object as its last line and exits 1 if anything did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from typing import Any

import hypothesis
import schemathesis
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

EXAMPLES = 8  # of one operation and mode before the next has its turn
MOST_PROBLEMS = 10


def fuzz(address: str, key: str | None, seconds: float) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json", headers=headers)
    operations = [operation.ok() for operation in schema.get_all_operations()]
    statuses: Counter[int] = Counter()
    problems: list[str] = []
    end, turn = time.monotonic() + seconds, 0

    def attack(case: schemathesis.Case) -> None:
        if time.monotonic() > end:
            return
        response = case.call(headers=headers, timeout=120)
        statuses[response.status_code] += 1
        # a conversation may fit the schema and make no sense, or be too long: a refusal is no failure
        case.validate_response(response, headers=headers, excluded_checks=[positive_data_acceptance])

    while time.monotonic() < end and len(problems) < MOST_PROBLEMS:
        for operation in operations:
            for mode in GenerationMode:
                settings = hypothesis.settings(
                    max_examples=EXAMPLES,
                    deadline=None,
                    database=None,
                    phases=[hypothesis.Phase.generate],
                    suppress_health_check=list(hypothesis.HealthCheck),
                )
                test = hypothesis.seed(turn)(settings(hypothesis.given(operation.as_strategy(mode))(attack)))
                turn += 1
                try:
                    test()
                except hypothesis.errors.Unsatisfiable:
                    continue  # nothing can be wrong with a request that has no parameters
                except Exception as failed:  # whatever a check says
                    problems.append(f"{operation.label}: {failed}"[:800])
    cases = sum(statuses.values())
    by_status = {str(status): count for status, count in sorted(statuses.items())}
    return {"ok": not problems and cases > 0, "cases": cases, "by_status": by_status, "problems": problems}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    found = fuzz(options.address, os.environ.get("ETUDE_API_KEY"), options.seconds)
    print(json.dumps(found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())

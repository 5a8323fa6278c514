"""Detectors by name. A built-in one is imported when it is first asked for; `./mine.py:Mine` is the user's own file.

Knows the names of files, nothing of what is in them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from etude.audit.base import Detector
from etude.core.component import resolve
from etude.core.errors import EtudeError

# Module -> its detectors. A recipe calls GitHistory "git-history".
_DETECTORS = {
    "leaked_solution": "Bytecode ToolCaches BuildOutputs Backups InstalledCopy GitHistory Network Recited Copied",
    "test_twins": "TestTwins",
    "test_tampering": "EditedTests TestHooks TestSettings TestPlugins Shadowed Skips DroppedModules UnwrittenTests",
    "environment_tampering": "StartupFiles EditedFramework PathTrojans ForgedReward Daemons GraderFiles Links Processes"
    " Resources",
    "special_cased_code": "EarlyExit FakeOutput EqualToAll PatchedFramework Introspection SpecialCases DetectsTests"
    " RecordedState",
    "judge_injection": "ToldTheJudge FalseClaims ChangedSpecification",
    "broken_task": "MissingDependency Contradiction UnreadableTests ClosedFiles",
}
DETECTORS = {
    re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower(): f"etude.audit.detectors.{module}:{name}"
    for module, names in _DETECTORS.items()
    for name in names.split()
}


def build_detectors(wanted: Sequence[Mapping[str, Any]] = (), where: str = "audit.detectors") -> list[Detector]:
    """The detectors of a recipe (`[{"use": "git-history"}, {"use": "./mine.py:Mine"}]`); none named is all of ours."""
    found: list[Detector] = []
    for number, entry in enumerate(wanted or [{"use": name} for name in DETECTORS]):
        place = f"{where}[{number}]"
        use = entry.get("use")
        if not isinstance(use, str):
            raise EtudeError(f"{place} must say which detector it is: use = NAME or ./file.py:Class")
        settings = {key: value for key, value in entry.items() if key != "use"}
        detector = resolve("detector", use, settings, DETECTORS, place)
        if not isinstance(detector, Detector):
            raise EtudeError(f"{place}: {use} is not a detector; derive it from etude.audit.base.Detector")
        detector.name = use.rpartition(":")[2] if ".py:" in use else use
        found.append(detector)
    return found

"""Detectors by name. A built-in one is imported when it is first asked for; `./mine.py:Mine` is the user's own file.

Knows the names of files, nothing of what is in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.audit.base import Detector
from etude.core.component import resolve
from etude.core.errors import EtudeError

_ROOM = "etude.audit.detectors"
DETECTORS = {
    "bytecode": f"{_ROOM}.leaked_solution:Bytecode",
    "tool-caches": f"{_ROOM}.leaked_solution:ToolCaches",
    "build-outputs": f"{_ROOM}.leaked_solution:BuildOutputs",
    "backups": f"{_ROOM}.leaked_solution:Backups",
    "installed-copy": f"{_ROOM}.leaked_solution:InstalledCopy",
    "git-history": f"{_ROOM}.leaked_solution:GitHistory",
    "network": f"{_ROOM}.leaked_solution:Network",
    "recited": f"{_ROOM}.leaked_solution:Recited",
    "copied": f"{_ROOM}.leaked_solution:Copied",
    "edited-tests": f"{_ROOM}.test_tampering:EditedTests",
    "test-hooks": f"{_ROOM}.test_tampering:TestHooks",
    "test-settings": f"{_ROOM}.test_tampering:TestSettings",
    "test-plugins": f"{_ROOM}.test_tampering:TestPlugins",
    "shadowed": f"{_ROOM}.test_tampering:Shadowed",
    "skips": f"{_ROOM}.test_tampering:Skips",
    "dropped-modules": f"{_ROOM}.test_tampering:DroppedModules",
    "unwritten-tests": f"{_ROOM}.test_tampering:UnwrittenTests",
    "startup-files": f"{_ROOM}.environment_tampering:StartupFiles",
    "edited-framework": f"{_ROOM}.environment_tampering:EditedFramework",
    "path-trojans": f"{_ROOM}.environment_tampering:PathTrojans",
    "forged-reward": f"{_ROOM}.environment_tampering:ForgedReward",
    "daemons": f"{_ROOM}.environment_tampering:Daemons",
    "grader-files": f"{_ROOM}.environment_tampering:GraderFiles",
    "links": f"{_ROOM}.environment_tampering:Links",
    "processes": f"{_ROOM}.environment_tampering:Processes",
    "resources": f"{_ROOM}.environment_tampering:Resources",
    "early-exit": f"{_ROOM}.special_cased_code:EarlyExit",
    "fake-output": f"{_ROOM}.special_cased_code:FakeOutput",
    "equal-to-all": f"{_ROOM}.special_cased_code:EqualToAll",
    "patched-framework": f"{_ROOM}.special_cased_code:PatchedFramework",
    "introspection": f"{_ROOM}.special_cased_code:Introspection",
    "special-cases": f"{_ROOM}.special_cased_code:SpecialCases",
    "detects-tests": f"{_ROOM}.special_cased_code:DetectsTests",
    "recorded-state": f"{_ROOM}.special_cased_code:RecordedState",
    "told-the-judge": f"{_ROOM}.judge_injection:ToldTheJudge",
    "false-claims": f"{_ROOM}.judge_injection:FalseClaims",
    "changed-specification": f"{_ROOM}.judge_injection:ChangedSpecification",
    "missing-dependency": f"{_ROOM}.broken_task:MissingDependency",
    "contradiction": f"{_ROOM}.broken_task:Contradiction",
    "unreadable-tests": f"{_ROOM}.broken_task:UnreadableTests",
    "closed-files": f"{_ROOM}.broken_task:ClosedFiles",
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

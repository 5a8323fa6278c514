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
    "bytecode": f"{_ROOM}.leftovers:Bytecode",
    "tool-caches": f"{_ROOM}.leftovers:ToolCaches",
    "build-outputs": f"{_ROOM}.leftovers:BuildOutputs",
    "backups": f"{_ROOM}.leftovers:Backups",
    "installed-copy": f"{_ROOM}.leftovers:InstalledCopy",
    "git-history": f"{_ROOM}.leftovers:GitHistory",
    "network": f"{_ROOM}.leftovers:Network",
    "recited": f"{_ROOM}.leftovers:Recited",
    "copied": f"{_ROOM}.leftovers:Copied",
    "edited-tests": f"{_ROOM}.judges:EditedTests",
    "test-hooks": f"{_ROOM}.judges:TestHooks",
    "test-settings": f"{_ROOM}.judges:TestSettings",
    "test-plugins": f"{_ROOM}.judges:TestPlugins",
    "shadowed": f"{_ROOM}.judges:Shadowed",
    "skips": f"{_ROOM}.judges:Skips",
    "dropped-modules": f"{_ROOM}.judges:DroppedModules",
    "unwritten-tests": f"{_ROOM}.judges:UnwrittenTests",
    "startup-files": f"{_ROOM}.machinery:StartupFiles",
    "edited-framework": f"{_ROOM}.machinery:EditedFramework",
    "path-trojans": f"{_ROOM}.machinery:PathTrojans",
    "forged-reward": f"{_ROOM}.machinery:ForgedReward",
    "daemons": f"{_ROOM}.machinery:Daemons",
    "grader-files": f"{_ROOM}.machinery:GraderFiles",
    "links": f"{_ROOM}.machinery:Links",
    "processes": f"{_ROOM}.machinery:Processes",
    "resources": f"{_ROOM}.machinery:Resources",
    "early-exit": f"{_ROOM}.code:EarlyExit",
    "fake-output": f"{_ROOM}.code:FakeOutput",
    "equal-to-all": f"{_ROOM}.code:EqualToAll",
    "patched-framework": f"{_ROOM}.code:PatchedFramework",
    "introspection": f"{_ROOM}.code:Introspection",
    "special-cases": f"{_ROOM}.code:SpecialCases",
    "detects-tests": f"{_ROOM}.code:DetectsTests",
    "recorded-state": f"{_ROOM}.code:RecordedState",
    "told-the-judge": f"{_ROOM}.words:ToldTheJudge",
    "false-claims": f"{_ROOM}.words:FalseClaims",
    "changed-specification": f"{_ROOM}.words:ChangedSpecification",
    "missing-dependency": f"{_ROOM}.broken:MissingDependency",
    "contradiction": f"{_ROOM}.broken:Contradiction",
    "unreadable-tests": f"{_ROOM}.broken:UnreadableTests",
    "closed-files": f"{_ROOM}.broken:ClosedFiles",
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

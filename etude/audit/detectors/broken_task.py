"""Rules about the task: faults that no agent can mend, seen in what it was given and in what its tests said."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from etude.audit.base import Detector, Finding
from etude.audit.evidence import Evidence, is_test
from etude.audit.python_actions import imported_roots, parse

MISSING = re.compile(r"(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'")


class MissingDependency(Detector):
    """Tests that import what is not there, and did not come to be there."""

    def look(self, evidence: Evidence) -> Iterator[Finding]:
        outputs = [(number, call.result) for number, turn in enumerate(evidence.view.turns) for call in turn.calls]
        missing = {name: number for number, text in outputs for name in MISSING.findall(text)}
        if not missing:
            return
        for name, turn in missing.items():
            root = name.partition(".")[0]
            here = any(
                path.split("/")[0].removesuffix(".py") == root or f"/{root}" in path for path in evidence.view.names
            )
            # pytest and nose are the runner's to bring, not the repository's.
            if here or root in sys.stdlib_module_names or root in ("pytest", "nose"):
                continue
            wanted = [
                path for path in self._tests(evidence) if root in imported_roots(parse(evidence.view.workspace[path]))
            ]
            last = [
                text for number, text in outputs if number >= turn and re.search(r"Ran \d+ tests?|passed|failed", text)
            ]
            # The last run of tests decides: an agent may have installed what was missing.
            if wanted and (not last or MISSING.search(last[-1])):
                yield self.finding(
                    "broken task", f"{wanted[0]} imports {root}, which is not installed", turn, wanted[0]
                )

    def _tests(self, evidence: Evidence) -> list[str]:
        return [path for path in evidence.view.workspace if is_test(path) and path.endswith(".py")]


class Contradiction(Detector):
    """Tests that want two values of one call, where nothing but its arguments can decide."""

    def look(self, evidence: Evidence) -> Iterator[Finding]:
        for function, cases in evidence.cases.items():
            wanted: dict[str, str] = {}
            for given, value, plain in cases:
                if plain and wanted.setdefault(given, value) != value:
                    said = f"tests want both {wanted[given][:40]} and {value[:40]} of {function}({given[:40]})"
                    yield self.finding("broken task", said)
                    break


class UnreadableTests(Detector):
    """Test files that are not Python."""

    def look(self, evidence: Evidence) -> Iterator[Finding]:
        for path in evidence.view.workspace:
            if not re.search(r"(^|/)test_[^/]*\.py$", path):
                continue
            text = evidence.view.workspace[path]
            if any(name in text for name in evidence.functions) and parse(text) is None:
                yield self.finding("broken task", f"{path} is not valid Python", path=path)


class ClosedFiles(Detector):
    """Files that have to change and may not."""

    def look(self, evidence: Evidence) -> Iterator[Finding]:
        view = evidence.view
        for module in evidence.modules:
            if view.allowed and not view.allows(module):
                yield self.finding("broken task", f"the task is about {module} and does not let it change", path=module)
        for number, turn in enumerate(view.turns):
            for call in turn.calls:
                path = call.arguments.get("path", "")
                refused = call.failed and re.search(r"permission denied|read-only file system", call.result)
                if call.name in ("write", "edit") and refused and view.allows(path):
                    yield self.finding("broken task", f"{path} has to change and cannot be written", number, path)

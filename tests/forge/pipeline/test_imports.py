"""The makers as somebody has them who installed the package: no project around it, nothing but its own dependencies."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import etude


def test_the_command_can_be_imported_where_no_project_is_around(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(etude.__file__).parent, tmp_path / "etude", ignore=ignored)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.modules['packaging'] = None\n"
        "import etude.forge.pipeline.command as command; print(command.__file__)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))

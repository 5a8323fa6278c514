"""What `import etude` offers: lazily, as documented, and the same tomorrow."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import etude
from etude.forge.katas.task_source import write_katas

ROOT = Path(__file__).parents[1]

# The promise: a name or a parameter may be added; one that goes or is renamed breaks other people's notebooks.
SURFACE = {
    "load_recipe": ["source", "overrides"],
    "read_run": ["path"],
    "load_task": ["directory"],
    "open_host": ["backend", "store", "preload"],
    "temporary_host": ["backend"],
    "make_policy": ["name", "task", "dialect", "seed"],
    "build_setup": ["harness", "reward", "grader", "audit", "dialect", "temperature"],
    "run_rollout": ["task", "policy", "host", "setup", "policy_name", "seed", "on_event"],
    "grade": ["task", "host", "submission", "settings", "answer"],
    "find_model": ["path"],
    "load_model": ["directory", "device", "dtype"],
    "open_dialect": ["directory", "options"],
    "Decoder": ["config", "seed"],
    "Engine": ["decoder", "settings", "version"],
    "Sampling": ["max_tokens", "temperature", "top_p", "top_k", "seed", "stop_ids"],
    "Version": ["lineage", "step"],
    "Learner": ["decoder", "optim", "total_steps", "micro_tokens", "device"],
    "Batch": ["items", "correction"],
    "Item": ["tokens_T", "streams", "temperature"],
    "Label": ["ids_T"],
    "Stream": ["head", "weight_T", "target"],
    "Scored": ["task", "trajectory", "changes", "grade", "reward", "parts", "seconds"],
    "Void": ["task", "cause", "retry", "message", "trajectory", "seconds"],
    "RunData": ["path", "facts", "recipe", "metrics", "checkpoints", "benchmarks", "results", "notes"],
}
UNCALLED = {"__version__", "EtudeError", "Recipe", "Task"}  # made by other names of the surface


def test_importing_it_loads_nothing() -> None:
    check = "import sys, etude; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'pydantic', 'typer')))"
    assert subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode == 0
    assert (Path(etude.__file__).parent / "py.typed").exists()


def test_names_and_parameters_stay() -> None:
    assert set(etude.__all__) == {*SURFACE, *UNCALLED} and len(etude.__all__) == len(set(etude.__all__))
    for name, promised in SURFACE.items():
        parameters = list(inspect.signature(getattr(etude, name)).parameters)
        assert [each for each in parameters if each in promised] == promised, (name, parameters)
    assert set(etude.__all__) == set(dir(etude))
    with pytest.raises(AttributeError, match="no attribute 'Enigne'"):
        _ = etude.Enigne  # type: ignore[attr-defined]


def test_types_are_those_of_the_names_that_are_loaded() -> None:
    """Editors and mypy read the imports under TYPE_CHECKING, Python reads the table: they must say the same."""
    tree = ast.parse(Path(etude.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {}
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            seen |= {alias.asname or alias.name: f"{node.module}:{alias.name}" for alias in node.names}
    seen["load_task"] = f"{seen['Task']}.load"
    assert seen == etude._HOME


def test_the_page_about_it_runs_and_names_everything(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "extend" / "library.md").read_text()
    table = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    assert {name for name in etude.__all__ if f"`{name}`" not in table} == set()
    shutil.copytree(tiny_run, tmp_path / "runs" / "quickstart")
    write_katas(tmp_path / "katas", count=2, levels=(1,))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "library.md", "exec", dont_inherit=True), names)
    assert names["passed"] is True and names["losses"]

"""Rows of SWE-bench and SWE-smith data sets as tasks of ours.

A row names a repository, a commit and two patches. SWE-bench's `patch` is the answer, and its `test_patch` brings the
tests that grade it; SWE-smith's `patch` plants the bug, so the answer is to undo it. The repository comes from a git
checkout that the user has; nothing is fetched, and git sees only its objects. Without an environment a task can be
read, exported and run from the row's image; with one (`etude env install`) it is graded here.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic

from etude.core.errors import EtudeError
from etude.corpus.sources.git import Reader, find_store
from etude.tasks.format.config import SCHEMA, Config, Environment, Facts, Installed, Package, Verifier
from etude.tasks.format.file_tree import Files, Kind
from etude.tasks.format.patches import apply
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task, solve_script

SMITH = "swesmith/"
LARGEST = 64 << 20  # bytes of a file of rows, and of one file of a repository
IMAGE = "swebench/sweb.eval.x86_64.{}:latest"
SECONDS = 120.0  # for one call of git
TEST_SH = b"""#!/bin/sh
cd /testbed
cp -R /tests/. /testbed/
if xargs -a /tests/ids.txt -d '\\n' python -m pytest -q -p no:cacheprovider; then echo 1; else echo 0; fi \\
    > /logs/verifier/reward.txt
"""


class Row(pydantic.BaseModel, extra="ignore", frozen=True):
    """The columns that a task is made of; others are left alone."""

    instance_id: str = pydantic.Field(pattern=r"^[A-Za-z0-9][\w.+-]{0,200}$")
    repo: str
    base_commit: str = pydantic.Field("", pattern=r"^[0-9a-f]{0,64}$")
    patch: str
    test_patch: str = ""
    problem_statement: str = ""
    image_name: str = ""
    created_at: str = ""
    FAIL_TO_PASS: list[str]
    PASS_TO_PASS: list[str] = []

    @pydantic.field_validator("FAIL_TO_PASS", "PASS_TO_PASS", mode="before")
    @classmethod
    def _is_a_list(cls, given: Any) -> Any:
        """Data sets hold these as a list, or as a string of JSON."""
        return json.loads(given) if isinstance(given, str) else given

    @property
    def plants_a_bug(self) -> bool:
        return self.repo.startswith(SMITH)

    @property
    def commit(self) -> str:
        """The commit that the patch is about: SWE-smith's `base_commit` has the bug, so it stands in `repo`."""
        return self.repo.rpartition(".")[2] if self.plants_a_bug else self.base_commit


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file: JSON lines, a list, or an object of rows by their ids."""
    if not path.is_file() or path.stat().st_size > LARGEST:
        raise EtudeError(f"{path} is no file of rows of at most {LARGEST >> 20} MB; export the data set as JSON lines")
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    try:
        try:
            found = json.loads(text)
        except ValueError:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        raise EtudeError(f"{path} is neither JSON nor JSON lines; export the data set as one of them") from None
    rows = list(found.values()) if isinstance(found, dict) and "instance_id" not in found else found
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], 1):
        try:
            yield Row.model_validate(row)
        except (pydantic.ValidationError, ValueError) as error:
            first = error.errors()[0] if isinstance(error, pydantic.ValidationError) else None
            where = ".".join(map(str, first["loc"])) if first else "FAIL_TO_PASS"
            raise EtudeError(f"{path}, row {number}: {where}: {first['msg'] if first else error}") from None


def tree_at(checkout: Path, commit: str) -> Files:
    """The files of a commit, plain ones only, as committed."""
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        raise EtudeError(f"{commit!r} is no commit")
    store = find_store(checkout)
    with tempfile.TemporaryDirectory(prefix="etude-rows-") as empty:
        reader = Reader(store, commit, Path(empty), SECONDS)
        listed = reader.git(["rev-parse", "--verify", f"{commit}^{{commit}}"], b"", 200).decode().strip()
        reader.commit = listed
        files = {file.path: file.data for file in reader.read(lambda path: True, LARGEST) if file.data is not None}
    return Files(files)


def import_rows(rows: Path, checkout: Path, out: Path, digest: str = "") -> tuple[list[Path], dict[str, str]]:
    """Writes the rows of a file as task directories below `out`: those, and why each other row makes none.

    `digest` names an installed environment, in which they are then graded.
    """
    environment = Installed(digest=digest) if digest else None
    written: list[Path] = []
    refused: dict[str, str] = {}
    for row in read_rows(rows):
        target = out / row.instance_id
        try:
            task_of(row, tree_at(checkout, row.commit), environment).save(target)
            written.append(target)
        except EtudeError as error:
            refused[row.instance_id] = str(error)
    return written, refused


def task_of(row: Row, tree: Files, environment: Installed | None = None) -> Task:
    """A row over its repository's files at `row.commit`."""
    changed = _applied(row, row.patch, tree)
    tested = tree.replaced(_applied(row, row.test_patch, tree)) if row.test_patch else tree
    whole = [test for test in (*row.FAIL_TO_PASS, *row.PASS_TO_PASS) if _is_whole(test)]
    tests = _tests(tested, whole)
    if row.plants_a_bug:
        workspace, solution = tree.replaced(changed), {path: tree.get(path) for path in changed}
    else:
        workspace, solution = tree, changed
    if gone := [path for path, data in solution.items() if data is None]:
        raise EtudeError(f"{row.instance_id}: its answer deletes {gone[0]}, which a folder of files cannot say")
    kept = set(whole)
    facts = Facts(
        category="bug" if row.plants_a_bug else "issue",
        provenance=f"{row.repo} {row.commit}",
        family=row.repo.removeprefix(SMITH),
        suite="pytest",
        fail_to_pass=[test for test in row.FAIL_TO_PASS if test in kept],
        pass_to_pass=[test for test in row.PASS_TO_PASS if test in kept],
        allowed_paths=sorted(set(solution) | {f"{_folder(path)}*.py" for path in solution}),
        environment=environment,
    )
    if not facts.fail_to_pass:
        raise EtudeError(f"{row.instance_id} has no whole test id in FAIL_TO_PASS: nothing could tell an answer apart")
    image = row.image_name or IMAGE.format(row.instance_id.replace("__", "_1776_").lower())
    files = {
        "environment/Dockerfile": f"FROM {image}\nWORKDIR /testbed\n".encode(),
        **{f"{WORKSPACE}/{path}": data for path, data in workspace.items()},
        **{f"{TESTS}/{path}": tested[path] for path in tests},
        f"{TESTS}/test.sh": TEST_SH,
        f"{TESTS}/ids.txt": "\n".join([*facts.fail_to_pass, *facts.pass_to_pass, ""]).encode(),
        **{f"{SOLUTION}/{path}": data for path, data in solution.items() if data is not None},
        "solution/solve.sh": solve_script("/testbed"),
    }
    kinds: dict[str, Kind] = {f"{TESTS}/test.sh": "executable", "solution/solve.sh": "executable"}
    config = Config(
        schema_version=SCHEMA,
        source=row.repo,
        task=Package(name=f"{_org(row)}/{row.instance_id}"),
        verifier=Verifier(timeout_sec=1800.0),
        environment=Environment(workdir="/testbed", network_mode="no-network"),
    )
    statement = row.problem_statement.strip() or "Some tests of this repository fail. Find out why and mend the code."
    return Task(row.instance_id, statement + "\n", config, facts, Files(files, kinds))


def _applied(row: Row, patch: str, tree: Files) -> dict[str, bytes | None]:
    try:
        return apply(patch, tree)
    except EtudeError as error:
        raise EtudeError(f"{row.instance_id}: {error}") from None


def _is_whole(test: str) -> bool:
    """Some data sets cut long ids off within their parameters; such an id names no test."""
    return "::" in test and (test.endswith("]") or "[" not in test)


def _tests(tested: Mapping[str, bytes], ids: list[str]) -> list[str]:
    """The files of these tests, all that lies beside or below them, and what pytest reads in the folders above."""
    folders = {_folder(test.partition("::")[0]) for test in ids}

    def belongs(path: str) -> bool:
        here = _folder(path)
        if here in folders or any(here.startswith(folder) for folder in folders if folder):
            return True
        steers = path.removeprefix(here) in ("conftest.py", "__init__.py")
        return steers and any(folder.startswith(here) for folder in folders)

    return [path for path in tested if belongs(path)]


def _folder(path: str) -> str:
    """The folder of a path, with its slash; nothing for the root."""
    found = path.rpartition("/")[0]
    return f"{found}/" if found else ""


def _org(row: Row) -> str:
    return row.repo.removeprefix(SMITH).partition("/")[0].partition("__")[0] or "swe"

"""Lint: a clean task gives nothing, and each planted problem gives its own rule."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from etude.tasks.format import config as toml
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task
from etude.tasks.lint import RULES, Finding, lint, lint_directory

CLEAN = {
    "environment/Dockerfile": b"FROM python:3.12.1-slim AS base\nFROM base\nCOPY workspace/ /app/\n",
    "environment/workspace/app/core.py": b"def f():\n    raise NotImplementedError\n",
    "environment/workspace/tests/test_core.py": b"# shown\n",
    "solution/files/app/core.py": b"def f():\n    return 1\n",
    "solution/solve.sh": b"cp -R files/. /app/\n",
    "tests/test.sh": b"python -m unittest\n",
    "tests/test_core.py": b"class T:\n    def test_a(self): pass\n    def test_b(self): pass\n",
    "tests/test_hidden.py": b"class H:\n    async def test_c(self): pass\n",
}
CONFIG = b"""
artifacts = ["/app"]
[verifier]
environment_mode = "separate"
[metadata.etude]
suite = "unittest"
fail_to_pass = ["test_core.T.test_a"]
pass_to_pass = ["test_core.T.test_b"]
held_out = ["test_hidden.H.test_c"]
allowed_paths = ["app/**/*.py"]
deleted = ["app/core.py:f"]
"""

# No test fails before: neither one that is shown nor one that is held out.
NOTHING_NOTICES = CONFIG.replace(b'["test_core.T.test_a"]', b"[]").replace(b'["test_hidden.H.test_c"]', b"[]")


def made(text: bytes = CONFIG, files: dict[str, bytes | None] | None = None) -> Task:
    """The clean task with another task.toml, or with some files changed or (None) missing."""
    config, facts = toml.read(text, "task.toml")
    contents = {path: data for path, data in {**CLEAN, **(files or {})}.items() if data is not None}
    return Task("t", "Do it.", config, facts, Files(contents))


def file(path: str, data: bytes | None) -> Task:
    return made(files={path: data})


def rules(task: Task) -> set[str]:
    return {finding.rule for finding in lint(task)}


def test_a_clean_task_gives_nothing():
    assert lint(made()) == []


def changed(old: str, new: str) -> bytes:
    assert old in CONFIG.decode()
    return CONFIG.decode().replace(old, new).encode()


@pytest.mark.parametrize(
    ("rule", "severity", "task"),
    [
        ("unknown-config-field", "warning", made(b"colour = 1\n" + CONFIG)),
        ("unknown-config-field", "warning", made(CONFIG + b"[agent]\nspeed = 3\n")),
        ("unknown-config-field", "warning", made(CONFIG + b"other = 'x'\n")),
        ("legacy-config-field", "note", made(CONFIG + b"[environment]\nmemory = '4G'\n")),
        ("root-agent", "warning", made(CONFIG + b"[agent]\nuser = 'root'\n")),
        ("root-agent", "warning", made(CONFIG + b"[agent]\nuser = 0\n")),
        ("shared-verifier", "warning", made(changed('environment_mode = "separate"', ""))),
        ("artifact-log-overlap", "error", made(changed('["/app"]', '["/logs/verifier"]'))),
        ("artifact-log-overlap", "error", made(changed('["/app"]', '["/"]'))),
        ("overlapping-artifacts", "warning", made(changed('["/app"]', '["/app", {source = "/app/out"}]'))),
        ("overlapping-artifacts", "warning", made(changed('["/app"]', '["/app", "/app"]'))),
        ("compose-privileged", "error", file("environment/docker-compose.yaml", b"a:\n  privileged: true\n")),
        ("compose-privileged", "error", file("environment/compose.yml", b"- /var/run/docker.sock:/x\n")),
        ("unpinned-image", "warning", file("environment/Dockerfile", b"FROM python\n")),
        ("unpinned-image", "warning", file("environment/Dockerfile", b"FROM --platform=x a/b:latest\n")),
        ("unpinned-image", "warning", made(CONFIG + b"[environment]\ndocker_image = 'ubuntu'\n")),
        (
            "unpinned-python-dependency",
            "warning",
            file("environment/Dockerfile", b"RUN pip install -q numpy==2.1 six\n"),
        ),
        ("agent-image-test-leak", "error", file("environment/Dockerfile", b"COPY ../tests/ /tests/\n")),
        ("agent-image-test-leak", "error", file("environment/workspace/notes.py", CLEAN["tests/test_hidden.py"])),
        ("verifier-runtime-install", "warning", file("tests/test.sh", b"apt-get install -y git\n")),
        ("verifier-network-download", "warning", file("tests/test.sh", b"curl -o x https://example.org\n")),
        ("missing-instruction", "error", replace(made(), instruction=" \n")),
        ("missing-tests", "error", file("tests/test.sh", None)),
        ("missing-solution", "warning", file("solution/solve.sh", None)),
        ("missing-environment", "error", Task("t", "Do it.", files=Files({"tests/test.sh": b""}))),
        ("missing-facts", "note", made(b"[verifier]\nenvironment_mode = 'separate'\n")),
        ("no-fail-to-pass", "error", made(NOTHING_NOTICES)),
        ("no-held-out-tests", "warning", made(changed('["test_hidden.H.test_c"]', "[]"))),
        ("no-allowed-paths", "error", made(changed('["app/**/*.py"]', "[]"))),
        ("repeated-test-id", "error", made(changed("test_core.T.test_b", "test_core.T.test_a"))),
        ("unknown-test-id", "warning", made(changed("T.test_b", "T.test_x"))),
        ("unknown-test-id", "error", made(changed("test_core.T.test_b", "test_gone.T.test_b"))),
        ("tests-allowed", "error", made(changed("app/**/*.py", "**"))),
        ("tests-allowed", "error", made(changed("app/**/*.py", "*.py"))),
        ("leftover-answer", "error", file("environment/workspace/app/__pycache__/c.pyc", b"")),
        ("leftover-answer", "error", file("environment/workspace/.git/HEAD", b"")),
        ("solved-workspace", "error", file("environment/workspace/old/core.py", CLEAN["solution/files/app/core.py"])),
        ("unknown-deleted-symbol", "warning", made(changed("app/core.py:f", "app/other.py:f"))),
    ],
)
def test_each_planted_problem_is_found(rule, severity, task):
    found = [finding for finding in lint(task) if finding.rule == rule]
    assert found and {finding.severity for finding in found} == {severity}
    assert all(finding.file and finding.message for finding in found)


def test_ids_of_pytest_may_be_functions_and_parametrised():
    text = b"""[metadata.etude]
suite = "pytest"
fail_to_pass = ["test_p.py::test_one[2-x]", "test_p.py::K::test_two"]
held_out = ["test_p.py::test_three"]
allowed_paths = ["app/*.py"]
"""
    source = b"def test_one(a): pass\ndef test_three(): pass\nclass K:\n    def test_two(self): pass\n"
    assert "unknown-test-id" not in rules(made(text, {"tests/test_p.py": source}))


def test_pinned_and_local_things_are_left_alone():
    dockerfile = (
        b"FROM python@sha256:0123\nFROM scratch\nARG V\nFROM x:$V\nRUN pip install -r requirements.txt ./local 'a==1'\n"
        b"COPY workspace/tests/ /app/tests/\n"
    )
    assert lint(file("environment/Dockerfile", dockerfile)) == []


def test_a_directory_that_cannot_be_loaded_is_one_finding(tmp_path):
    (tmp_path / "task.toml").write_text("[agent]\ntimeout_sec = 'x'\n")
    (finding,) = lint_directory(tmp_path)
    assert isinstance(finding, Finding)
    assert (finding.rule, finding.severity) == ("invalid-task-config", "error")
    assert "task.toml: agent.timeout_sec" in finding.message and str(finding).startswith("error invalid-task-config: ")


def test_errors_come_first():
    severities = [finding.severity for finding in lint(made(b"version = '1.0'\n", {"tests/test.sh": None}))]
    assert severities == sorted(severities, key=("error", "warning", "note").index) and len(set(severities)) == 3


def test_every_rule_is_on_the_page():
    page = (Path(__file__).parents[2] / "docs/tasks/format.md").read_text()
    source = Path(lint.__code__.co_filename).read_text()
    names = set(re.findall(r'Finding\(\s*"([a-z-]+)"', source))
    assert len(names) >= 20 and len(RULES) >= 15
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


def test_a_file_whose_hidden_tests_are_written_elsewhere_may_be_seen():
    heirs = b"from test_hidden import H\n\n\nclass Heirs(H):\n    pass\n"
    facts = changed('["test_hidden.H.test_c"]', '["test_hidden.H.test_c", "test_heirs.Heirs.test_c"]')
    both = {"tests/test_heirs.py": heirs, "environment/workspace/tests/test_heirs.py": heirs}
    assert not [finding for finding in lint(made(facts, both)) if finding.rule == "agent-image-test-leak"]


def test_a_refactoring_may_carry_tests_that_the_task_has_itself_and_no_others():
    facts = changed('["app/**/*.py"]', '["app/**/*.py", "tests/test_core.py"]')
    asked = facts + b"[metadata.etude.refactor]\nkind = 'rename'\nold = 'f'\nnew = 'g'\n"
    own = {"tests/tests/test_core.py": b"# in its new form\n"}
    assert "tests-allowed" in rules(made(facts, own)) and "tests-allowed" in rules(made(asked))
    assert "tests-allowed" not in rules(made(asked, own))
    assert "tests-allowed" in rules(made(asked.replace(b'"tests/test_core.py"', b'"tests/*.py"'), own))


def test_a_file_that_the_solution_takes_away_is_in_the_workspace_and_not_in_the_solution():
    for path in ("app/nowhere.py", "app/core.py"):
        assert "unknown-removed-file" in rules(made(CONFIG + f"removed = ['{path}']\n".encode()))
    moved = {"environment/workspace/app/old.py": b"x = 1\n", "solution/files/app/new.py": b"x = 1\n"}
    assert lint(made(CONFIG + b"removed = ['app/old.py']\n", dict(moved))) == []
    assert "solved-workspace" in rules(made(files=dict(moved)))


def test_tasks_that_were_made_before_the_fairness_gate_are_named() -> None:
    for version, rules in ((2, {"made-before-fairness"}), (3, set())):
        text = CONFIG + f'provenance = "shop 1.0; make {version}; deletion-0123456789ab"\n'.encode()
        assert {finding.rule for finding in lint(made(text))} == rules


def test_a_fix_with_one_test_may_hold_it_out_and_show_none() -> None:
    assert lint(made(CONFIG.replace(b'["test_core.T.test_a"]', b"[]"))) == []

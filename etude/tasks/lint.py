"""What is wrong with a task, found without a model and without running anything.

Rules are named as Harbor names them where it has them. A rule is one small function from a task to findings, listed
in `RULES`; adding one touches nothing else. An error makes a task unusable or unfair, a warning weakens it, a note
is worth knowing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from etude.core.errors import EtudeError
from etude.tasks.environment.shadow_backend import FILE, read_backend
from etude.tasks.format.config import Artifact, unknown_keys
from etude.tasks.format.file_tree import TreeLimits
from etude.tasks.format.task import CONFIG, INSTRUCTION, SOLUTION, TESTS, WORKSPACE, Task, matches
from etude.tasks.grading.inherited_tests import InheritedTests, collected
from etude.tasks.grading.packaging_config import FILES
from etude.tasks.kinds.base import FACTS, Finding
from etude.tasks.kinds.code_change import test_file
from etude.tasks.kinds.table import KINDS, kind_of

Rule = Callable[[Task], Iterator[Finding]]
FAIR_SINCE: Final = 3  # the version of making tasks from which on hidden tests ask only for what can be known


def lint(task: Task) -> list[Finding]:
    """Everything the rules find, errors first."""
    order = ("error", "warning", "note")
    return sorted((finding for rule in RULES for finding in rule(task)), key=lambda found: order.index(found.severity))


def lint_directory(directory: Path | str, limits: TreeLimits | None = None) -> list[Finding]:
    """The same for a directory; one that cannot be loaded gives the reason as its one finding."""
    try:
        task = Task.load(directory, limits)
    except EtudeError as error:
        return [Finding("invalid-task-config", "error", str(directory), str(error))]
    return lint(task)


# The configuration


def unknown_config_field(task: Task) -> Iterator[Finding]:
    tables = {f"metadata.etude.{kind.facts}" for kind in KINDS}
    for key in (*unknown_keys(task.config), *unknown_keys(task.facts, "metadata.etude.")):
        if key in tables:
            continue
        yield Finding("unknown-config-field", "warning", CONFIG, f"{key} is not a field of the schema; it is kept")


def legacy_config_field(task: Task) -> Iterator[Finding]:
    environment = task.config.environment
    older = {
        "version": (task.config.version, "schema_version"),
        "environment.memory": (environment.memory, "memory_mb"),
        "environment.storage": (environment.storage, "storage_mb"),
        "environment.allow_internet": (environment.allow_internet, "network_mode"),
    }
    for key, (value, newer) in older.items():
        if value is not None:
            yield Finding("legacy-config-field", "note", CONFIG, f"{key} is an older spelling of {newer}")


def root_agent(task: Task) -> Iterator[Finding]:
    if task.config.agent.user in ("root", 0):
        yield Finding("root-agent", "warning", CONFIG, "agent.user is root, who can change what the verifier relies on")


def shared_verifier(task: Task) -> Iterator[Finding]:
    if task.config.verifier.mode == "shared":
        message = "tests run in the container that the agent had: set verifier.environment_mode = 'separate'"
        yield Finding("shared-verifier", "warning", CONFIG, message)


def artifact_log_overlap(task: Task) -> Iterator[Finding]:
    for source in _artifact_sources(task):
        if _covers(source, "/logs") or _covers("/logs", source):
            message = f"the artifact {source} overlaps /logs, where the verifier writes"
            yield Finding("artifact-log-overlap", "error", CONFIG, message)


def overlapping_artifacts(task: Task) -> Iterator[Finding]:
    sources = _artifact_sources(task)
    for number, outer in enumerate(sources):
        for inner in sources[:number] + sources[number + 1 :]:
            if _covers(outer, inner) and (outer != inner or sources.index(inner) < number):
                message = f"the artifact {inner} is already part of {outer}"
                yield Finding("overlapping-artifacts", "warning", CONFIG, message)


# The images


def compose_privileged(task: Task) -> Iterator[Finding]:
    for path in task.files:
        for at, text in _lines(task, path) if re.search(r"compose[^/]*\.ya?ml$", path) else ():
            if re.match(r"\s*(-\s*)?privileged\s*:\s*(true|yes|on)\b", text, re.IGNORECASE):
                yield Finding("compose-privileged", "error", at, "a privileged container is no sandbox")
            elif "docker.sock" in text:
                yield Finding("compose-privileged", "error", at, "the docker socket is the host's root")


def unpinned_image(task: Task) -> Iterator[Finding]:
    stages: set[str] = {"scratch"}
    for path in _dockerfiles(task):
        for at, text in _lines(task, path):
            found = re.match(r"\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", text, re.IGNORECASE)
            if found is None:
                continue
            if found[1] not in stages and not _is_pinned(found[1]):
                yield Finding("unpinned-image", "warning", at, f"{found[1]} names no fixed version")
            stages.add(found[2] or "scratch")
    image = task.config.environment.docker_image
    if image is not None and not _is_pinned(image):
        yield Finding("unpinned-image", "warning", CONFIG, f"environment.docker_image {image} names no fixed version")


def unpinned_python_dependency(task: Task) -> Iterator[Finding]:
    for path in [*_dockerfiles(task), *_scripts(task)]:
        for at, text in _lines(task, path):
            for package in _installed(text):
                if "==" not in package and "@" not in package:
                    message = f"{package} is installed without a version: write {package}==VERSION"
                    yield Finding("unpinned-python-dependency", "warning", at, message)


def agent_image_test_leak(task: Task) -> Iterator[Finding]:
    """The image that the agent works in must hold neither the tests that grade it nor the solution."""
    for path in _dockerfiles(task):
        if path.startswith("environment/"):
            for at, text in _lines(task, path):
                if re.match(r"\s*(COPY|ADD)\b.*(\btests/|\bsolution/|\.\./)", text, re.IGNORECASE) and not re.search(
                    r"\bworkspace/tests/", text
                ):
                    message = "copies tests or the solution into the agent's image"
                    yield Finding("agent-image-test-leak", "error", at, message)
    code = (".py", ".sh", ".js", ".cjs", ".mjs")
    seen = {task.workspace[path]: path for path in task.workspace if path.endswith(code)}
    hidden = set(_written_in(task, task.facts.held_out))
    for path, data in task.tests.items():
        if path in hidden and data.strip() and data in seen:
            yield Finding(
                "agent-image-test-leak", "error", f"{WORKSPACE}/{seen[data]}", f"is the hidden {TESTS}/{path}"
            )


# The verifier


def verifier_runtime_install(task: Task) -> Iterator[Finding]:
    installs = r"\b(pip3?|uv pip|uvx|apt(-get)?|apk|conda|npm)\s+(install|add)\b|\buvx\s"
    message = "installs while grading, so the grade depends on the day: install it in the image"
    for path, text in _verifier_lines(task):
        if re.search(installs, text):
            yield Finding("verifier-runtime-install", "warning", path, message)


def verifier_network_download(task: Task) -> Iterator[Finding]:
    for path, text in _verifier_lines(task):
        if re.search(r"\b(curl|wget|git\s+clone)\b", text.split("#")[0]):
            message = "downloads while grading: put the file into tests/"
            yield Finding("verifier-network-download", "warning", path, message)


def missing_parts(task: Task) -> Iterator[Finding]:
    steps = [step.name for step in task.config.steps]
    for folder in [f"steps/{step}" for step in steps] or ["."]:
        start = "" if folder == "." else f"{folder}/"
        if not task.instruction.strip() and not any(f"{start}{INSTRUCTION}" == path for path in task.files):
            yield Finding("missing-instruction", "error", f"{start}{INSTRUCTION}", "there is nothing to do")
        graded = task.script(f"{start}{TESTS}", "test") is not None or task.script(TESTS, "test") is not None
        if not graded and task.facts.sandbox:  # a question's answer is compared, and nothing runs
            yield Finding("missing-tests", "error", f"{start}{TESTS}/test.sh", "nothing can grade this task")
        if task.script(f"{start}solution", "solve") is None:
            yield Finding("missing-solution", "warning", f"{start}solution/solve.sh", "nobody has shown it is possible")
    nothing = not _dockerfiles(task) and task.config.environment.docker_image is None and not len(task.workspace)
    if nothing and task.facts.sandbox:
        has_compose = any(re.search(r"environment/.*compose.*\.ya?ml$", path) for path in task.files)
        if not has_compose:
            yield Finding("missing-environment", "error", "environment/", "no Dockerfile, image or workspace")


# Our own facts


def kind_facts(task: Task) -> Iterator[Finding]:
    """What the task's kind of outcome needs."""
    return kind_of(task).lint(task)


def environment_suite(task: Task) -> Iterator[Finding]:
    """Tests of a repository with an environment are run by its pytest or node, in one process with what they test."""
    facts = task.facts
    if facts.environment is not None and facts.suite not in ("pytest", "node"):
        yield Finding("environment-suite", "error", FACTS, "a task with an environment has suite = 'pytest' or 'node'")
    if facts.environment is None and facts.suite == "node":
        yield Finding("environment-suite", "error", FACTS, "suite = 'node' needs an environment")
    if facts.environment is not None and facts.grading == "apart":
        yield Finding("environment-suite", "error", FACTS, "a task with an environment is not graded apart")


def allowed_tests(task: Task) -> Iterator[Finding]:
    """Changes to tests, or to what steers them, must never reach the grader."""
    steering = (
        *("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", "setup.cfg", "pyproject.toml"),
        *("package.json", "node_modules/tape/index.js"),
    )
    shown = [path for path in task.workspace if re.search(r"(^|/)(tests?/|test_[^/]*$|[^/]*_test\.py$)", path)]
    submitted = kind_of(task).submitted_tests(task)
    for pattern in task.facts.allowed_paths:
        if pattern in submitted or pattern in FILES:  # of those only what is about packaging is submitted
            continue
        for path in [*shown, *steering, "tests/test_new.py"]:
            if matches(path, pattern):
                message = f"allowed_paths has {pattern!r}, which lets {path} reach the grader"
                yield Finding("tests-allowed", "error", FACTS, message)
                break


def leftover_answer(task: Task) -> Iterator[Finding]:
    """Caches, bytecode and history keep what was deleted."""
    kept = r"(^|/)(\.git|__pycache__|\.tox|\.(mypy|pytest|ruff)_cache|\.cache)/|\.(py[co]|orig)$"
    for path in task.workspace:
        if re.search(kept, path):
            yield Finding("leftover-answer", "error", f"{WORKSPACE}/{path}", "may hold the deleted code")


def solved_workspace(task: Task) -> Iterator[Finding]:
    """The workspace must not be, or contain, the answer."""
    answers = {data: path for path, data in task.solution.items() if data.strip()}
    for path in task.workspace:
        answer = answers.get(task.workspace[path]) if task.workspace.size(path) < 1 << 20 else None
        if answer is not None and path not in task.facts.removed:  # what only moves is the same elsewhere
            message = f"is already {SOLUTION}/{answer}"
            yield Finding("solved-workspace", "error", f"{WORKSPACE}/{path}", message)


def deleted_symbols(task: Task) -> Iterator[Finding]:
    for symbol in task.facts.deleted:
        path, _, name = symbol.partition(":")
        if not name or path not in {*task.workspace, *task.solution}:
            message = f"deleted has {symbol!r}: write path:name with a path of the workspace"
            yield Finding("unknown-deleted-symbol", "warning", FACTS, message)


def shadow_backend(task: Task) -> Iterator[Finding]:
    """Services beside the repository can be read, and the repository does not say what they are there to say."""
    try:
        backend = read_backend(task)
    except EtudeError as error:
        yield Finding("invalid-services", "error", FILE, str(error))
        return
    texts = [issue.text.strip() for issue in backend.issues] if backend is not None else []
    for path in task.workspace if any(texts) else ():
        data = task.workspace[path]
        for text in texts:
            if len(text) >= 40 and text.encode() in data:
                yield Finding("evidence-in-workspace", "warning", f"{WORKSPACE}/{path}", "holds the text of an issue")


def removed_files(task: Task) -> Iterator[Finding]:
    for path in task.facts.removed:
        if path not in task.workspace or path in task.solution:
            message = f"removed has {path!r}, which the workspace has to have and the solution must not"
            yield Finding("unknown-removed-file", "error", FACTS, message)


def older_make(task: Task) -> Iterator[Finding]:
    """Tasks that were made before a gate existed still load; this says what they have not been held to."""
    found = re.search(r"; make (\d+);", task.facts.provenance)
    if found is not None and int(found[1]) < FAIR_SINCE and task.facts.held_out and task.facts.deleted:
        message = (
            f"made by version {found[1]}, before hidden tests were held to be fair: some may ask for what nothing "
            "says; `etude tasks make` with another --out makes such tasks anew"
        )
        yield Finding("made-before-fairness", "warning", FACTS, message)


RULES: tuple[Rule, ...] = (
    unknown_config_field,
    legacy_config_field,
    root_agent,
    shared_verifier,
    artifact_log_overlap,
    overlapping_artifacts,
    compose_privileged,
    unpinned_image,
    unpinned_python_dependency,
    agent_image_test_leak,
    verifier_runtime_install,
    verifier_network_download,
    missing_parts,
    kind_facts,
    environment_suite,
    allowed_tests,
    leftover_answer,
    solved_workspace,
    deleted_symbols,
    shadow_backend,
    removed_files,
    older_make,
)


# What the rules look at


def _artifact_sources(task: Task) -> list[str]:
    given = [*task.config.artifacts, *(one for step in task.config.steps for one in step.artifacts)]
    return [one.source if isinstance(one, Artifact) else one for one in given]


def _covers(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _dockerfiles(task: Task) -> list[str]:
    inside = (f"{WORKSPACE}/", f"{SOLUTION}/")
    return [path for path in task.files if re.search(r"(^|/)Dockerfile$", path) and not path.startswith(inside)]


def _scripts(task: Task) -> list[str]:
    return [path for path in task.files if path.endswith((".sh", ".bat")) and not path.startswith(f"{WORKSPACE}/")]


def _lines(task: Task, path: str) -> Iterator[tuple[str, str]]:
    """The lines of a file, each with where it stands."""
    if task.files.size(path) <= 1 << 20:
        for number, text in enumerate(task.files.text(path).splitlines(), start=1):
            yield f"{path}:{number}", text


def _verifier_lines(task: Task) -> Iterator[tuple[str, str]]:
    for path in _scripts(task):
        if path.startswith(f"{TESTS}/"):
            yield from _lines(task, path)


def _is_pinned(image: str) -> bool:
    _, _, tag = image.rpartition("/")[2].partition(":")
    return "@sha256:" in image or "$" in image or (tag not in ("", "latest") and any(map(str.isdigit, tag)))


def _installed(line: str) -> list[str]:
    found = re.search(r"\bpip3?\s+install\s+([^&|;#]*)", line)
    words = found[1].split() if found else []
    takes_value = ("-r", "--requirement", "-c", "--constraint", "-i", "--index-url", "-e", "--extra-index-url", "-t")
    names = [word for before, word in zip(["", *words], words, strict=False) if before not in takes_value]
    return [name.strip("'\"") for name in names if re.match(r"['\"]?[A-Za-z]", name) and not name.endswith(".whl")]


def _written_in(task: Task, tests: Sequence[str]) -> Iterator[str]:
    """The files that hold the text of these tests: that of a class which others inherit from."""
    sources = {path: task.tests.text(path) for path in task.tests if path.endswith(".py")}
    inherited = InheritedTests(sources)
    for test in tests:
        path = test_file(test)
        try:
            yield inherited.home(*collected(test))[0] if path in sources else path
        except (EtudeError, SyntaxError, ValueError, RecursionError):  # said elsewhere
            yield path

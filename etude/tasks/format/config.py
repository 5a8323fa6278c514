"""task.toml: every documented field of Harbor's schema 1.4, and our own facts in `[metadata.etude]`.

Unknown keys are kept and written back (lint names them); a known key with a wrong value is refused with its key.
Only keys that were given are written, so reading and writing loses nothing and adds nothing. Knows the file's
content, never the directory it lies in.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self, TypeVar

import pydantic
import tomli_w
from pydantic import AfterValidator, ConfigDict, Field

from etude.core.errors import EtudeError
from etude.core.renamed import FACTS, current

SCHEMA = "1.4"
LARGEST = 1 << 20  # bytes of a task.toml

NetworkMode = Literal["no-network", "public", "allowlist"]
Suite = Literal["unittest", "pytest", "node"]
PromptStyle = Literal["terse", "plain", "detailed"]
Split = Literal["train", "held_out", "unseen"]
Grading = Literal["apart", "together", "recorded"]
AnswerKind = Literal["name", "names", "text"]
RefactorKind = Literal["rename", "parameter", "move"]


class Table(pydantic.BaseModel):
    """A table of the file. Frozen; make another with `model_copy(update=...)`."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)


AnyTable = TypeVar("AnyTable", bound=Table)


def _destination(path: str) -> str:
    if path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise ValueError("a destination is a relative path without '..'")
    if path == "manifest.json":
        raise ValueError("manifest.json is reserved")
    return path


def _source(path: str) -> str:
    if not path or ".." in PurePosixPath(path).parts:
        raise ValueError("a source is a path without '..'")
    return path


def _host(host: str) -> str:
    if re.fullmatch(r"(\*\.)?[A-Za-z0-9_.-]+|[0-9A-Fa-f:.]+(/\d{1,3})?", host) is None:
        raise ValueError("a host is a name, *.name, an address or a block of addresses, without scheme or port")
    return host


Source = Annotated[str, AfterValidator(_source)]


class Artifact(Table):
    """A file or folder of the agent's container that is kept."""

    source: Source
    destination: Annotated[str, AfterValidator(_destination)] | None = None
    exclude: list[str] = []
    service: str | None = None


class Network(Table):
    """What may be reached. None leaves the decision to the surrounding table."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[Annotated[str, AfterValidator(_host)]] = []

    @pydantic.model_validator(mode="after")
    def _hosts_need_a_list(self) -> Self:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
        return self


class Author(Table):
    name: str
    email: str | None = None


class Package(Table):
    """[task]: the task as something to publish."""

    name: str
    version: str | None = None
    description: str = ""
    authors: list[Author] = []
    keywords: list[str] = []

    @pydantic.field_validator("name")
    @classmethod
    def _has_an_owner(cls, name: str) -> str:
        if re.fullmatch(r"[^/\s]+/[^/\s]+", name) is None:
            raise ValueError("a task's name reads owner/name")
        return name


class Agent(Network):
    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None


class Tpu(Table):
    type: str
    topology: str


class McpServer(Table):
    name: str
    transport: Literal["stdio", "sse", "streamable-http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    headers: dict[str, str] = {}


class Healthcheck(Table):
    command: str
    interval_sec: float = 5
    timeout_sec: float = 30
    start_period_sec: float = 0
    start_interval_sec: float = 5
    retries: int = 3


class Environment(Network):
    build_timeout_sec: float = Field(default=600.0, gt=0)
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: int | float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int = 0
    gpu_types: list[str] | None = None
    tpu: Tpu | None = None
    env: dict[str, str] = {}
    workdir: str | None = None
    skills_dir: str | None = None
    mcp_servers: list[McpServer] = []
    healthcheck: Healthcheck | None = None
    memory: str | None = None  # older spelling of memory_mb: "4G"
    storage: str | None = None  # older spelling of storage_mb
    allow_internet: bool | None = None  # older spelling of network_mode


class Collect(Table):
    """A command run after the agent and before its artifacts are collected."""

    command: str
    service: str | None = None
    timeout_sec: float = 60.0
    user: str | int | None = None


class Verifier(Network):
    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[Collect] = []

    @property
    def mode(self) -> Literal["shared", "separate"]:
        """Where tests run: in the agent's container, or in a fresh one."""
        return self.environment_mode or ("separate" if self.environment is not None else "shared")

    @pydantic.model_validator(mode="after")
    def _shared_has_no_own_environment(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' leaves no room for [verifier.environment]")
        return self


class Solution(Table):
    env: dict[str, str] = {}


class Step(Table):
    name: str
    min_reward: float | dict[str, float] | None = None
    artifacts: list[Source | Artifact] = []
    agent: Agent | None = None
    verifier: Verifier | None = None
    healthcheck: Healthcheck | None = None

    @pydantic.field_validator("name")
    @classmethod
    def _is_a_folder(cls, name: str) -> str:
        if not name or "/" in name or name in (".", ".."):
            raise ValueError("a step's name is the name of its folder below steps/")
        return name


class Config(Table):
    """The whole file, without `[metadata.etude]`, which is `Facts`."""

    schema_version: str = SCHEMA
    version: str | None = None  # older spelling of schema_version
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    artifacts: list[Source | Artifact] = []
    task: Package | None = None
    metadata: dict[str, Any] = {}
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    environment: Environment = Environment()
    solution: Solution = Solution()
    steps: list[Step] = []

    @pydantic.model_validator(mode="after")
    def _a_strategy_needs_steps(self) -> Self:
        if self.multi_step_reward_strategy is not None and not self.steps:
            raise ValueError("multi_step_reward_strategy needs [[steps]]")
        return self


class Installed(Table):
    """[metadata.etude.environment]: what the tests of a real repository need, as `etude env install` made it."""

    digest: str  # names the layer, its lock and how the suite runs
    python: str = "/opt/env/bin/python"  # in the sandbox
    paths: list[str] = [""]  # folders of the workspace that imports start from
    env: dict[str, str] = {}  # variables that the suite needs

    @pydantic.field_validator("digest")
    @classmethod
    def _is_a_digest(cls, digest: str) -> str:
        if re.fullmatch(r"[0-9a-f]{16,128}", digest) is None:
            raise ValueError("an environment's digest is hexadecimal")
        return digest

    @pydantic.field_validator("python")
    @classmethod
    def _is_absolute(cls, python: str) -> str:
        if not python.startswith("/") or ".." in PurePosixPath(python).parts:
            raise ValueError("the interpreter is an absolute path without '..'")
        return python

    @pydantic.field_validator("paths")
    @classmethod
    def _stay_inside(cls, paths: list[str]) -> list[str]:
        if any(path.startswith("/") or ".." in PurePosixPath(path).parts for path in paths):
            raise ValueError("a path of the workspace is relative and has no '..'")
        return paths


class Answer(Table):
    """[metadata.etude.answer]: the outcome of the task is an answer in words, and no change of files counts."""

    kind: AnswerKind = "name"  # one function of the repository, or exactly these; or words that are compared whole
    accepted: list[str] = Field(min_length=1)  # as path:name or words; of names all are wanted, else any one is right


class Testing(Table):
    """[metadata.etude.testing]: the work is a file of tests, graded by the mistakes that it notices.

    The mistakes lie in `tests/mutants/`, a folder each, as the files that they change.
    """

    file: str  # where the tests are wanted, in the workspace; no other change reaches the grader
    share: float = Field(default=0.66, gt=0, le=1)  # of the mistakes that have to be noticed

    @pydantic.field_validator("file")
    @classmethod
    def _is_a_module(cls, file: str) -> str:
        if file.startswith("/") or ".." in PurePosixPath(file).parts or not file.endswith(".py"):
            raise ValueError("the file of tests is a relative path without '..' that ends with .py")
        return file


class Refactor(Table):
    """[metadata.etude.refactor]: something gets another name or place, and nothing stays behind under the old one.

    The repository's tests are part of the work; `tests/` has them as they are afterwards.
    """

    kind: RefactorKind
    symbol: str = ""  # what gets another name, or whose parameter does, as path:name; nothing where a module moves
    old: str  # a name; the path of a module
    new: str


class Documentation(Table):
    """[metadata.etude.documentation]: the work is docstrings with examples, graded by the mistakes that those notice.

    The mistakes lie in `tests/mutants/`, a folder each, as the files that they change.
    """

    functions: list[str] = Field(min_length=1)  # as path:name, all of one file; nothing but docstrings may change there
    examples: int = Field(default=2, ge=1)  # that each of them has to have
    share: float = Field(default=0.66, gt=0, le=1)  # of the mistakes that have to be noticed

    @pydantic.field_validator("functions")
    @classmethod
    def _are_of_one_module(cls, functions: list[str]) -> list[str]:
        if len({name.partition(":")[0] for name in functions}) != 1 or any(":" not in name for name in functions):
            raise ValueError("the functions are path:name, of one file")
        return functions

    @property
    def file(self) -> str:
        return self.functions[0].partition(":")[0]


class Withheld(Table):
    """[metadata.etude.withheld]: how far the held-out tests are without their answers (`tests/answers.json`)."""

    plan: int  # version of the grading plan
    bits: float  # that the withheld answers of held-out tests are worth
    tests: int  # held-out tests
    unrecorded: int = 0  # of them, those that record nothing or keep their answers: they grade nobody
    solutions: int = 0  # right ones beside the reference that were asked for the same values
    assertions: int = 0  # of held-out tests that record something
    unshared: float = 0.0  # share of them whose value is the reference's alone: only whether they hold is asked for


class Facts(Table):
    """[metadata.etude]: what our own grader, curriculum and reports need to know."""

    category: str = ""  # the kind of work: "feature deletion"
    provenance: str = ""  # where the task comes from: a generator and its version, or a repository and commit
    family: str = ""  # tasks of one family differ in parameters only
    level: int = 0  # 1 is the easiest; 0 is unknown
    rung: int = 0  # of the ladder to real repositories, from 1 on; 0: it stands on none
    bits: float | None = None  # log2 of what a searcher would have to try where the instruction points, where measured
    seed: int | None = None  # with split and family, makes the same task again
    split: Split | None = None
    prompt_style: PromptStyle | None = None  # how the instruction speaks
    suite: Suite | None = None  # what the test ids belong to
    fail_to_pass: list[str] = []  # ids of tests that fail before and must pass after
    pass_to_pass: list[str] = []  # ids of tests that pass before and must still pass after
    held_out: list[str] = []  # ids of tests that the agent never sees and that must pass after
    allowed_paths: list[str] = []  # globs of the workspace: changes to other files do not reach the grader
    grading: Grading | None = None  # whether tests and tested code share a process; None leaves it to the grader
    withheld: Withheld | None = None  # what the answers are worth that its tests do not hold, where grading is recorded
    environment: Installed | None = None  # where tests run; None: the interpreter that grades, and its pytest
    deleted: list[str] = []  # what was taken away, as path:name
    removed: list[str] = []  # files of the workspace that the solution takes away
    sandbox: bool = True  # false: there are no files and no programs, only a question
    answer: Answer | None = None  # what the agent has to say in its last words, where no edit is asked for
    testing: Testing | None = None  # what its tests have to notice, where tests are what is asked for
    refactor: Refactor | None = None  # what gets another name or place, where that is the work
    restored: bool | None = None  # true: a file has to be as the solution has it, and no test says more
    documentation: Documentation | None = None  # what its docstrings have to show, where those are asked for
    parameters: dict[str, list[str]] = {}  # what was drawn to make this task


def read(text: bytes, where: str) -> tuple[Config, Facts]:
    """The content of a task.toml; `where` names it in errors."""
    if len(text) > LARGEST:
        raise EtudeError(f"{where} has {len(text)} bytes, more than the {LARGEST} it may have")
    try:
        data = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise EtudeError(f"{where} is not valid TOML: {error}") from None
    except RecursionError:
        raise EtudeError(f"{where} is nested too deeply") from None
    metadata = data.get("metadata")
    facts = metadata.pop("etude", {}) if isinstance(metadata, dict) else {}
    if metadata == {} and facts:
        del data["metadata"]
    table = f"{where}: metadata.etude"
    facts = current(facts, FACTS, table) if isinstance(facts, dict) else facts
    return _validated(Config, data, where), _validated(Facts, facts, table)


def write(config: Config, facts: Facts) -> bytes:
    """The task.toml that says this, with only those keys that were given."""
    return tomli_w.dumps(to_dict(config, facts)).encode()


def to_dict(config: Config, facts: Facts) -> dict[str, Any]:
    data = config.model_dump(exclude_unset=True, exclude_none=True)
    own = facts.model_dump(exclude_unset=True, exclude_none=True)
    if own:
        data["metadata"] = {**data.get("metadata", {}), "etude": own}
    return data


def unknown_keys(table: Table, where: str = "") -> Iterator[str]:
    """Dotted names of keys that the schema does not know. `metadata` is free-form and not looked into."""
    for key in table.model_extra or {}:
        yield f"{where}{key}"
    for key in table.model_fields_set & type(table).model_fields.keys():
        value = getattr(table, key)
        for number, part in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(part, Table):
                yield from unknown_keys(
                    part, f"{where}{key}[{number}]." if isinstance(value, list) else f"{where}{key}."
                )


def _validated(model: type[AnyTable], data: Mapping[str, Any], where: str) -> AnyTable:
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        said: dict[tuple[str, ...], str] = {}
        for fault in error.errors():
            key = tuple(str(part) for part in fault["loc"] if not _is_branch(part))
            said.setdefault(key, fault["msg"].removeprefix("Value error, "))
        # Of a value that may be one of several things, only the deepest complaint is about what was meant.
        keys = [key for key in said if not any(other[: len(key)] == key != other for other in said)]
        name = ".".join(keys[0])
        more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
        raise EtudeError(f"{where}: {name + ': ' if name else ''}{said[keys[0]]}{more}") from None


def _is_branch(part: int | str) -> bool:
    """Whether a part of an error's location names an alternative of a union and not a key of the file."""
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "float", "Artifact"))

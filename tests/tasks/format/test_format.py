"""Task directories: nothing is lost on the way through, and nothing hostile gets in."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.core.errors import EtudeError
from etude.tasks.format import config as toml
from etude.tasks.format.file_tree import Files, TreeLimits
from etude.tasks.format.task import Task, matches, without_canary

# Every documented field of schema 1.4, none at its default.
EVERYTHING = b"""# a comment that stays as long as nothing changes
schema_version = "1.4"
source = "https://example.org/tasks"
multi_step_reward_strategy = "final"
artifacts = ["/app/out", {source = "/x", destination = "x/y", exclude = ["*.o"], service = "main"}]
colour = "kept"

[task]
name = "org/name"
version = "1.0.0"
description = "about"
authors = [{name = "A", email = "a@b"}, {name = "B"}]
keywords = ["k"]

[metadata]
difficulty = "hard"
made = 2025-01-02T03:04:05Z
nested = {deep = [1, 2.5, true]}

[metadata.etude]
category = "feature deletion"
provenance = "by hand"
family = "f"
level = 2
seed = 7
split = "held_out"
prompt_style = "terse"
suite = "pytest"
fail_to_pass = ["test_a.py::test_b"]
pass_to_pass = ["test_a.py::test_c[1-x]"]
held_out = ["test_h.py::T::test_d"]
allowed_paths = ["src/**/*.py"]
deleted = ["src/a.py:f"]
parameters = {names = ["a"], values = ["1"]}
extra = "kept too"

[agent]
timeout_sec = 900
user = 1000
network_mode = "allowlist"
allowed_hosts = ["packages.example.org", "*.example.org", "10.0.0.0/8", "::1"]

[verifier]
timeout_sec = 60.5
env = {KEY = "${KEY:-x}"}
user = "root"
environment_mode = "separate"
network_mode = "no-network"

[verifier.environment]
docker_image = "python:3.12.1-slim"
cpus = 0.5

[[verifier.collect]]
command = "pg_dump"
service = "db"
timeout_sec = 5.0
user = 3

[environment]
build_timeout_sec = 30.0
docker_image = "python:3.12.1-slim"
os = "windows"
cpus = 2
memory_mb = 4096
storage_mb = 10240
gpus = 1
gpu_types = ["H100"]
tpu = {type = "v6e", topology = "2x4"}
network_mode = "public"
env = {K = "V"}
workdir = "/app"
skills_dir = "/skills"
mcp_servers = [{name = "x", transport = "stdio", command = "c", args = ["a"], headers = {h = "v"}}]
healthcheck = {command = "true", interval_sec = 1.0, timeout_sec = 2.0, start_period_sec = 3.0, retries = 9}
memory = "4G"
storage = "10G"
allow_internet = false

[solution]
env = {S = "1"}

[[steps]]
name = "step-1"
min_reward = 0.5
artifacts = ["/app/one"]
agent = {timeout_sec = 5.0}
verifier = {timeout_sec = 6.0}
healthcheck = {command = "true"}

[[steps]]
name = "step-2"
min_reward = {tests = 1.0}
"""


def small(root: Path) -> Path:
    """A task directory that is as it should be."""
    files = {
        "task.toml": "[metadata.etude]\nfamily = 'x'\n",
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "FROM python:3.12.1\n",
        "environment/workspace/a/b.py": "x = 1\n",
        "tests/test.sh": "true\n",
        "solution/solve.sh": "true\n",
        "solution/files/a/b.py": "x = 2\n",
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "tests/test.sh").chmod(0o755)
    return root


def test_every_documented_field_is_read_and_written_back():
    config, facts = toml.read(EVERYTHING, "task.toml")
    assert tomllib.loads(toml.write(config, facts).decode()) == tomllib.loads(EVERYTHING.decode())
    assert toml.read(toml.write(config, facts), "again") == (config, facts)
    assert sorted([*toml.unknown_keys(config), *toml.unknown_keys(facts, "metadata.etude.")]) == [
        "colour",
        "metadata.etude.extra",
    ]


def test_an_empty_file_stays_empty_and_has_the_documented_defaults():
    config, facts = toml.read(b"", "task.toml")
    assert toml.write(config, facts) == b""
    assert (config.schema_version, config.verifier.timeout_sec, config.environment.build_timeout_sec) == (
        "1.4",
        600,
        600,
    )
    assert config.verifier.mode == "shared" and config.environment.os == "linux" and config.agent.timeout_sec is None
    assert toml.read(b"[verifier.environment]\n", "t")[0].verifier.mode == "separate"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = ", "task.toml is not valid TOML"),
        ("[agent]\ntimeout_sec = 'soon'", "task.toml: agent.timeout_sec: Input should be a valid number"),
        ("[agent]\ntimeout_sec = -1", "agent.timeout_sec: Input should be greater than 0"),
        ("[agent]\nallowed_hosts = ['a.b']", "agent: allowed_hosts needs network_mode"),
        ("[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['http://a.b:80']", "agent.allowed_hosts.0: a host is"),
        ("[environment]\nos = 'plan9'", "environment.os: Input should be 'linux' or 'windows'"),
        ("[verifier]\nenvironment_mode='shared'\n[verifier.environment]", "verifier: environment_mode = 'shared'"),
        ("[task]\nversion = '1'", "task.name: Field required"),
        ("[task]\nname = 'plain'", "task.name: a task's name reads owner/name"),
        ("artifacts = ['/a/../b']", "artifacts.0: a source is a path without"),
        ("artifacts = [{source = '/a', destination = '/b'}]", "destination: a destination is a relative path"),
        ("artifacts = [{source = '/a', destination = 'manifest.json'}]", "manifest.json is reserved"),
        ("multi_step_reward_strategy = 'mean'", "multi_step_reward_strategy needs"),
        ("[[steps]]\nname = '../x'", "steps.0.name: a step's name is the name of its folder"),
        ("[metadata.etude]\nlevel = 'one'", "metadata.etude: level: Input should be a valid integer"),
        ("[metadata.etude]\nsplit = 'test'", "metadata.etude: split: Input should be 'train', 'held_out' or 'unseen'"),
        ("metadata = {etude = 3}", "metadata.etude: Input should be a valid dictionary"),
        ("x = " + "[" * 5000, "nested too deeply"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(text, said):
    with pytest.raises(EtudeError) as error:
        toml.read(text.encode(), "task.toml")
    assert said in str(error.value)


def test_a_directory_is_loaded_and_saved_byte_for_byte(tmp_path):
    root = small(tmp_path / "one")
    (root / "task.toml").write_bytes(EVERYTHING)
    (root / "instruction.md").write_text("<!-- BENCHMARK canary 123 -->\n\n# canary too\nDo it.\n")
    (root / "trajectory.json").write_bytes(b"\xff\x00binary")
    (root / "environment/workspace/link.py").symlink_to("a/b.py")
    task = Task.load(root)
    assert task.name == "org/name" and task.instruction == "Do it.\n"
    task.save(tmp_path / "two")
    again = Task.load(tmp_path / "two")
    assert dict(again.files) == dict(task.files) and again.files == task.files and again.digest == task.digest
    assert (tmp_path / "two/tests/test.sh").stat().st_mode & 0o111
    assert (tmp_path / "two/environment/workspace/link.py").is_symlink()


def test_a_changed_task_is_saved_as_it_is_now(tmp_path):
    task = Task.load(small(tmp_path / "one"))
    facts = task.facts.model_copy(update={"level": 3})
    changed = dataclasses.replace(task, instruction="Do that.", facts=facts)
    assert changed.digest != task.digest
    changed.save(tmp_path / "two")
    again = Task.load(tmp_path / "two")
    assert (again.instruction, again.facts.level, again.facts.family) == ("Do that.", 3, "x")
    assert dict(again.workspace) == dict(task.workspace)


def test_a_task_in_memory_needs_no_directory(tmp_path):
    files = Files({"environment/workspace/a.py": b"x", "tests/test.sh": b"true"}, {"tests/test.sh": "executable"})
    task = Task("mine", "Do it.", files=files)
    assert dict(task.workspace) == {"a.py": b"x"} and task.workspace.directory is None
    task.save(tmp_path / "mine")
    loaded = Task.load(tmp_path / "mine")
    assert loaded.digest == task.digest and loaded.workspace.directory == tmp_path / "mine/environment/workspace"
    assert (loaded.script("tests", "test"), loaded.script("solution", "solve")) == ("tests/test.sh", None)


def test_files_on_disk_are_read_when_asked_for_and_never_through_a_new_link(tmp_path):
    files = Files.scan(small(tmp_path / "task"))
    target = tmp_path / "task/environment/workspace/a/b.py"
    target.write_text("x = 123\n")
    with pytest.raises(EtudeError, match="changed while it was in use"):
        files["environment/workspace/a/b.py"]
    target.unlink()
    target.symlink_to("/etc/passwd")
    with pytest.raises(EtudeError, match="could be listed but not read"):
        files["environment/workspace/a/b.py"]


def test_a_directory_that_is_no_task_or_is_in_the_way_is_refused(tmp_path):
    with pytest.raises(EtudeError, match="there is no task directory"):
        Task.load(tmp_path / "nowhere")
    with pytest.raises(EtudeError, match=r"it has no file task\.toml"):
        Task.load(tmp_path)
    root = small(tmp_path / "one")
    (root / "instruction.md").unlink()
    with pytest.raises(EtudeError, match=r"it has no file instruction\.md"):
        Task.load(root)
    with pytest.raises(EtudeError, match="already exists"):
        Task("mine", "x").save(root)


def test_steps_have_instructions_of_their_own(tmp_path):
    root = small(tmp_path)
    (root / "instruction.md").unlink()
    (root / "task.toml").write_text("[[steps]]\nname = 'one'\n")
    (root / "steps/one").mkdir(parents=True)
    (root / "steps/one/instruction.md").write_text("# canary\nFirst.")
    task = Task.load(root)
    assert task.instruction == "" and task.step_instruction("one") == "First."
    with pytest.raises(EtudeError, match="has no steps/two"):
        task.step_instruction("two")


def hostile(root: Path, kind: str) -> None:
    inside = root / "environment/workspace"
    match kind:
        case "link to a file outside":
            (inside / "x").symlink_to("/etc/passwd")
        case "link that climbs out":
            (inside / "x").symlink_to("../../../x")
        case "link that climbs in the middle":
            (inside / "deep").mkdir()
            (inside / "deep/up").symlink_to("..")
            (inside / "x").symlink_to("deep/up/../../..")
        case "link to itself":
            (inside / "x").symlink_to("x")
        case "links in a circle":
            (inside / "x").symlink_to("y")
            (inside / "y").symlink_to("x")
        case "link to its own folder":
            (inside / "x").symlink_to(".")
        case "link to nothing":
            (inside / "x").symlink_to("gone")
        case "sparse gigabyte":
            with (inside / "x").open("wb") as file:
                file.truncate(1 << 30)
        case "control characters":
            (inside / "a\nb\x1b[31m").write_text("x")
        case "undecodable name":
            (inside / os.fsdecode(b"\xff")).write_text("x")
        case "setuid":
            (inside / "x").write_text("x")
            (inside / "x").chmod(0o4755)
        case "pipe":
            os.mkfifo(inside / "x")
        case "task.toml as a link":
            (root / "task.toml").rename(root / "real.toml")
            (root / "task.toml").symlink_to("real.toml")
        case "deep folders":
            for depth in range(80):
                inside = inside / str(depth)
            inside.mkdir(parents=True)
        case "long instruction":
            (root / "instruction.md").write_text("x" * (2 << 20))
        case "long task.toml":
            (root / "task.toml").write_text("# " + "x" * (2 << 20))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("link to a file outside", "could lead out of its folder"),
        ("link that climbs out", "could lead out of its folder"),
        ("link that climbs in the middle", "could lead out of its folder"),
        ("link to itself", "missing or leads back to itself"),
        ("links in a circle", "missing or leads back to itself"),
        ("link to its own folder", "the tree has no end"),
        ("link to nothing", "missing or leads back to itself"),
        ("sparse gigabyte", "has 1073741824 bytes"),
        ("control characters", "rename it without control"),
        ("undecodable name", "rename it without control or undecodable"),
        ("setuid", "is a setuid or setgid file"),
        ("pipe", "is neither a file nor a folder nor a link"),
        ("task.toml as a link", "it has no file task.toml"),
        ("deep folders", "more than 64 folders deep"),
        ("long instruction", "instruction.md has 2097152 bytes"),
        ("long task.toml", "task.toml has 2097154 bytes"),
    ],
)
def test_hostile_directories_are_refused_in_one_sentence(kind, said, tmp_path):
    root = small(tmp_path / "task")
    hostile(root, kind)
    with pytest.raises(EtudeError) as error:
        Task.load(root)
    assert said in str(error.value) and "\x1b" not in str(error.value)


def test_a_link_must_stay_in_the_task_even_where_the_target_exists(tmp_path):
    (tmp_path / "secret").write_text("x")
    root = small(tmp_path / "task")
    (root / "leak").symlink_to("../secret")
    with pytest.raises(EtudeError, match="could lead out of its folder"):
        Task.load(root)


def test_limits_on_number_and_total_size(tmp_path):
    root = small(tmp_path)
    with pytest.raises(EtudeError, match="more than 3 files"):
        Task.load(root, TreeLimits(files=3))
    with pytest.raises(EtudeError, match="more than the 20 it may hold"):
        Task.load(root, TreeLimits(total_bytes=20))


@pytest.mark.parametrize("path", ["", "/a", "../a", "a/../b", "a//b", "./a", "a/", "a\x00b", "a\tb", "x" * 300])
def test_files_in_memory_refuse_paths_that_are_not_plain(path):
    with pytest.raises(EtudeError):
        Files({path: b""})
    with pytest.raises(EtudeError, match="a is a file, so it cannot be the folder of a/b/c"):
        Files({"a/b/c": b"", "a": b""})


@given(st.dictionaries(st.from_regex(r"[a-c]{1,2}/[a-c]{1,2}", fullmatch=True), st.binary(max_size=9), max_size=6))
def test_a_digest_names_content_alone(contents):
    one, other = Files(contents), Files(dict(reversed(contents.items())))
    assert one.digest() == other.digest() and one == other
    for path in contents:
        assert Files({**contents, path: contents[path] + b"x"}).digest() != one.digest()


def test_writing_never_goes_through_a_link_or_over_a_file(tmp_path):
    Files({"a/b": b"1", "l": b"a"}, {"l": "link"}).write(tmp_path / "one")
    assert (tmp_path / "one/l/b").read_bytes() == b"1"
    with pytest.raises(FileExistsError):
        Files({"a/b": b"2"}).write(tmp_path / "one")
    with pytest.raises(EtudeError, match="could lead out"):
        Files({"l": b"/etc"}, {"l": "link"})


@pytest.mark.parametrize(
    ("path", "pattern", "covered"),
    [
        ("a/b.py", "a/*.py", True),
        ("a/b/c.py", "a/*.py", False),
        ("a/b/c.py", "a/**/*.py", True),
        ("a/c.py", "a/**/*.py", True),
        ("tests/a.py", "a/**", False),
        ("a/b", "a/**", True),
        ("x.py", "*.py", True),
        ("a/x.py", "*.py", False),
        ("A/x.py", "a/*.py", False),
    ],
)
def test_globs_of_allowed_paths(path, pattern, covered):
    assert matches(path, pattern) is covered


def test_only_leading_canary_lines_go():
    assert without_canary("<!-- x CANARY y -->\n\nText\n# canary\n") == "Text\n# canary\n"
    assert without_canary("\nText") == "\nText"

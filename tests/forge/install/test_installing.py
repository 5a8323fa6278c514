"""Whole installations of tiny repositories, from a folder of wheels, and of hostile ones."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Call, Policy
from etude.forge.environments.environment import Environment
from etude.forge.install.checkout import open_repo
from etude.forge.install.install import _try_in_turn, install, repositories
from etude.forge.install.make_layer import UnverifiedEnvironment
from etude.forge.install.pip_settings import PackageIndex, read_index
from etude.forge.install.python_installer import Stage, rules
from etude.forge.install.result import InstallFailed, InstallResult, Memory
from etude.forge.install.rules.scripted_policy import StepPolicy, Steps, run
from etude.forge.install.target_commands import Proposal
from etude.forge.install.verify import verify
from etude.forge.leaks.minimal_host import minimal_host_folders
from etude.sandbox.hosts import open_host
from etude.sandbox.store.layers import Store
from etude.tasks.format.file_tree import Files

Tiny = Callable[..., Path]


def installed(root: Path, wheels: Path, store: Store, backend: str = "local", **more: object) -> InstallResult:
    async def work() -> InstallResult:
        repo = open_repo(str(root), repositories(store))
        async with await open_host(backend, store) as host:
            return await install(repo, host, read_index(wheels), **{"tries": 1, **more})  # type: ignore[arg-type]

    return asyncio.run(work())


def memory_of(root: Path, store: Store) -> Memory:
    """What the store remembers of a repository: an installation asks it first, under these terms."""
    return Memory(store, store.add(open_repo(str(root), repositories(store)).tree, shows=()))


def leftovers(store: Store) -> list[str]:
    return [str(path) for name in ("partial", "snapshots") for path in (store.root / name).glob("*")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def good(tiny: Tiny, wheels: Path, store: Store) -> tuple[Path, InstallResult]:
    """A repository below `src` whose tests import a package that nothing names."""
    more = {
        "tests/test_more.py": "import yaml\n\ndef test_yaml():\n    assert yaml.load('a') == 'a'\n",
        "bin/four.py": "#!/usr/bin/env python\nimport goodpkg\n\nprint(goodpkg.double(2))\n",
        "docs/page.txt": "How double is made: two times the number.\n",
    }
    root = tiny("goodpkg", more, layout="src")
    return root, installed(root, wheels, store)


def test_a_repository_is_installed_and_verified(good: tuple[Path, InstallResult]) -> None:
    result = good[1]
    assert result.ok and result.reason == "" and (result.passed, result.failed) == (13, 0)
    assert len(result.commands) == 10 and len(result.verified) == 3
    assert result.verified[0] == "python -m pytest tests"
    facts = result.facts()
    assert set(facts) >= {"ok", "reason", "commands", "verified", "tests", "digest", "seconds"}
    assert facts["tests"] == {"passed": 13, "failed": 0}


def test_the_layer_holds_the_dependencies_and_no_code_of_the_repository(
    good: tuple[Path, InstallResult], store: Store
) -> None:
    environment = Environment.load(good[1].digest, store)
    assert environment.paths == ("src",) and environment.suite.folders == ("tests",)
    assert environment.layer.shows == minimal_host_folders()
    files = Files.scan(environment.layer.path / "opt/env/lib")
    names = [path.partition("site-packages/")[2] for path in files]
    assert not any(name.startswith("goodpkg/") for name in names)
    assert any(name.startswith("goodpkg-1.2.dist-info/") for name in names)
    assert files.text(next(path for path in files if path.endswith("workspace.pth"))) == "/workspace/src\n"
    every = {path.relative_to(environment.layer.path) for path in environment.layer.path.rglob("*") if path.is_file()}
    assert [str(path) for path in every if not str(path).startswith("opt/env")] == [
        "workspace/src/goodpkg/made_by_the_build.py"
    ]
    code = (good[0] / "src/goodpkg/__init__.py").read_bytes()
    assert not any(code in (environment.layer.path / path).read_bytes() for path in every)


def test_installed_copies_of_scripts_and_pages_lead_to_the_workspace(
    good: tuple[Path, InstallResult], store: Store
) -> None:
    environment = Environment.load(good[1].digest, store)
    prefix = environment.layer.path / "opt/env"
    assert (prefix / "share/page.txt").readlink() == Path("/workspace/docs/page.txt")
    assert "double" not in (prefix / "bin/four.py").read_text()

    async def say() -> str:
        async with await open_host("local", store) as host:
            layers = [environment.layer, host.store.add(good[0], at="/workspace")]
            async with await host.start(layers) as sandbox:
                done = await sandbox.run(["/opt/env/bin/four.py"], cwd="/", timeout=20)
                return done.stdout.decode() + done.stderr.decode()

    assert asyncio.run(say()) == "4\n"


def test_the_lock_names_every_distribution_with_its_hash(good: tuple[Path, InstallResult], store: Store) -> None:
    lines = Environment.load(good[1].digest, store).lock.splitlines()
    names = [line.partition("==")[0] for line in lines]
    assert {"pytest", "pyyaml", "pluggy", "iniconfig", "packaging"} <= set(names) and "goodpkg" not in names
    assert all("--hash=sha256:" in line for line in lines), lines


def test_a_second_call_only_reads(good: tuple[Path, InstallResult], store: Store, tmp_path: Path) -> None:
    again = installed(good[0], tmp_path, store)  # there is nothing to install from
    assert again.cached and again.digest == good[1].digest and again.commands == good[1].commands
    assert again.environment is not None and again.environment.outcomes == good[1].environment.outcomes  # type: ignore[union-attr]


def test_nothing_is_left_behind(good: tuple[Path, InstallResult], store: Store) -> None:
    assert leftovers(store) == []


def test_the_command_answers_in_json(good: tuple[Path, InstallResult], wheels: Path, store: Store) -> None:
    command = [sys.executable, "-m", "etude", "env", "install", str(good[0]), "--json"]
    words = [*command, "--store", str(store.root), "--find-links", str(wheels)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    found = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and found["ok"] and found["cached"] and found["digest"] == good[1].digest
    wrong = subprocess.run([*command[:-2], "no/such", "--json"], capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 2 and "not a folder" in json.loads(wrong.stdout.splitlines()[-1])["error"]


@pytest.mark.parametrize(
    ("test", "verdict"),
    [
        (
            "@pytest.mark.parametrize('n', range(9))\ndef test_red(n):\n    assert n == 'never'",
            r"9 of 22 tests fail \(all in tests/test_wrong\.py\): .*red",
        ),
        ("import nowhere\n" + "def test_a(): ...\n" * 3, "3 of 16 tests fail: tests/test_wrong.py: .*nowhere"),
        (
            "import os\nos._exit(0)\n" + "def test_a(): ...\n" * 3,
            "3 of 16 tests fail: tests/test_wrong.py: the suite ended with 0, while",
        ),
    ],
)
def test_what_is_wrong_with_the_tests_is_named_in_the_verdict(
    good: tuple[Path, InstallResult], store: Store, tmp_path: Path, test: str, verdict: str
) -> None:
    environment = good[1].environment
    assert environment is not None
    shutil.copytree(good[0], tmp_path / "repo")
    (tmp_path / "repo/tests/test_wrong.py").write_text(f"import pytest\n{test}\n")

    async def work() -> None:
        async with await open_host("local", store) as host:
            workspace = store.add(tmp_path / "repo", shows=())
            await verify(environment, workspace, good[1].commands[:1], host, suite_seconds=60.0)

    with pytest.raises(InstallFailed, match=verdict):
        asyncio.run(work())


def test_a_build_that_fails_is_told_once(tiny: Tiny, wheels: Path, store: Store) -> None:
    root = tiny("unbuilt", trick="raise RuntimeError('not today')")
    result = installed(root, wheels, store, tries=5)
    assert not result.ok and result.tries == ("pip cannot install it: RuntimeError: not today",)
    assert result.reason.startswith(f"{result.tries[0]}; pip's last words are the cause") and leftovers(store) == []
    # Another day pip may find what it needs.
    assert memory_of(root, store).failure(read_index(wheels).variables, 1.0) is None


def test_a_repository_without_tests_is_discarded_before_anything_is_installed(
    tiny: Tiny, wheels: Path, store: Store, tmp_path: Path
) -> None:
    root = tiny("bare")
    (root / "tests/test_bare.py").unlink()
    result = installed(root, tmp_path, store)
    assert not result.ok and "no tests" in result.reason


def test_more_endless_tests_than_may_be_left_out_end_in_a_verdict(
    tiny: Tiny, wheels: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etude.forge.install.verify.MOST_LEFT_OUT", 0)
    endless = "import time\n\ndef test_endless():\n    while True:\n        time.sleep(1)\n"
    root = tiny("slowpkg", {"tests/test_endless.py": endless})
    result = installed(root, wheels, store, suite_seconds=8.0, tries=5)
    assert not result.ok and "more than 8 s" in result.reason
    assert "tests/test_endless.py::test_endless does not come to its end" in result.reason
    assert "--suite-seconds 32" in result.reason
    assert len(result.tries) == 1  # it would take as long again
    assert leftovers(store) == []
    # The machine may have been busy.
    assert memory_of(root, store).failure(read_index(wheels).variables, 1.0) is None


def test_a_remembered_failure_is_told_at_once_under_the_same_terms(tiny: Tiny, wheels: Path, store: Store) -> None:
    root, variables, began = tiny("redpkg"), read_index(wheels).variables, list[str]()
    memory = memory_of(root, store)
    failed = InstallResult(False, "9 of 22 tests fail", tries=("first", "9 of 22 tests fail"), lasting=True)
    memory.keep_failure(failed, variables, 60.0)
    known = installed(root, wheels, store, suite_seconds=50.0, note=began.append)
    assert known.cached and not began and (known.reason, known.tries) == (failed.reason, failed.tries)
    assert memory.failure(variables, 60.0) is not None
    assert memory.failure(variables, 61.0) is None and memory.failure(variables | {"PIP_TIMEOUT": "7"}, 60.0) is None
    assert installed(root, wheels, store, again=True).ok


def test_a_build_that_looks_for_the_host_finds_nothing_and_tests_have_no_network(
    tiny: Tiny, wheels: Path, store: Store, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the host's")
    trick = "; ".join(
        [
            f"assert not pathlib.Path({str(secret)!r}).exists()",
            f"assert not pathlib.Path({str(store.root)!r}).exists()",
            "import os, subprocess",
            "assert os.getuid() == 1000",
            "assert subprocess.run(['touch', '/usr/mark'], stderr=-3).returncode != 0",
            "subprocess.Popen(['sleep', '1000'], stdout=-3, stderr=-3)",
            "pathlib.Path('/workspace/planted.py').write_text('x = 1')",
            f"os.path.lexists('/opt/env/out') or os.symlink({str(tmp_path)!r}, '/opt/env/out')",
        ]
    )
    offline = """
        import pathlib, socket
        import pytest

        def test_there_is_no_network():
            with pytest.raises(OSError):
                socket.create_connection(("192.0.2.1", 80), timeout=2)
            assert [name for _, name in socket.if_nameindex() if name != "lo"] == []

        def test_what_the_build_planted_is_gone():
            assert not pathlib.Path("/workspace/planted.py").exists()
        """
    result = installed(tiny("nosy", {"tests/test_offline.py": offline}, trick), wheels, store)
    assert result.ok, result.reason
    assert result.passed == 14
    assert result.environment is not None
    assert (result.environment.layer.path / "opt/env/out").is_symlink()  # kept as it is, and leads nowhere inside
    assert secret.read_text() == "the host's" and list(tmp_path.iterdir()) == [secret]
    assert leftovers(store) == []


def test_an_agent_may_mock_what_is_missing_and_must_say_where_the_tests_are(
    tiny: Tiny, wheels: Path, store: Store
) -> None:
    asks = """
        import subprocess

        def test_service():
            assert subprocess.run(["tiny-service"], check=True).returncode == 0
        """
    root = tiny("served", {"tests/test_service.py": asks})

    def agent(stage: Stage, attempt: int) -> Policy:
        if stage == "explore":
            return rules(60.0)("explore", 1)

        def steps() -> Steps:
            answer: dict[str, object] = {"tests": ["tests"], "notes": ["mocked tiny-service"]} if attempt > 1 else {}
            if attempt > 1:
                yield [run("cp -R . ~/copy && pip install ~/copy pytest", 120)]
            yield [
                run("printf '#!/bin/sh\\nexit 0\\n' > /opt/env/bin/tiny-service && chmod 755 /opt/env/bin/tiny-service")
            ]
            yield [run(f"echo '{json.dumps(answer)}' > /opt/env/suite.json")]
            return "done"

        return StepPolicy(steps())

    result = installed(root, wheels, store, agents=agent, tries=2)
    assert result.ok, result.reason
    assert result.tries == ("nothing says where the tests are",) and result.notes == ("mocked tiny-service",)


def test_at_most_five_tries_are_made_and_earlier_ones_are_told(tiny: Tiny, wheels: Path, store: Store) -> None:
    told: list[str] = []

    class Idle:
        async def sample(self, context, sampling):  # type: ignore[no-untyped-def]
            told.append(context.messages[-1].text)
            return await StepPolicy(iter_nothing()).sample(context, sampling)

    def iter_nothing() -> Steps:
        nothing: Sequence[Call] = ()
        if nothing:
            yield nothing
        return "nothing done"

    def agent(stage: Stage, attempt: int) -> Policy:
        return rules(60.0)("explore", 1) if stage == "explore" else Idle()

    result = installed(tiny("idle"), wheels, store, agents=agent, tries=5)
    assert not result.ok and len(result.tries) == 5 and len(told) == 5
    assert "earlier tries" not in told[0] and told[1].count("nothing says where the tests are") == 1


def test_a_killed_installation_leaves_nothing_and_can_be_repeated(tiny: Tiny, wheels: Path, tmp_path: Path) -> None:
    root, folder = tiny("killed"), tmp_path / "store"
    words = [sys.executable, "-m", "etude", "env", "install", str(root)]
    process = subprocess.Popen(
        [*words, "--store", str(folder), "--find-links", str(wheels)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not list(folder.glob("layers/*")) and time.monotonic() < deadline:  # it is under way
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    store = Store(folder)
    assert leftovers(store) == [] and not list(folder.glob("environments/*"))
    assert leftovers(Store(repositories(store) / ".work")) == []


def test_the_weaker_backend_is_refused(tiny: Tiny, wheels: Path, store: Store) -> None:
    with pytest.raises(EtudeError, match="needs the local sandbox"):
        installed(tiny("weak"), wheels, store, backend="plain")


def test_a_folder_of_wheels_replaces_every_index(wheels: Path) -> None:
    index: PackageIndex = read_index(wheels)
    assert index.variables["PIP_NO_INDEX"] == "1" and index.shows == (str(wheels),)
    assert "PIP_INDEX_URL" not in index.variables and "PIP_EXTRA_INDEX_URL" not in index.variables


def test_a_test_that_never_ends_is_left_out_and_named(
    tiny: Tiny, wheels: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etude.forge.install.verify.LONGEST_TEST", 3.0)
    waits = "import threading\n\ndef test_waits():\n    threading.Event().wait()\n\ndef test_after():\n    pass\n"
    result = installed(tiny("waitpkg", {"tests/test_more.py": waits}), wheels, store, suite_seconds=60.0)
    assert result.ok and result.passed == 13, result.reason
    assert any("tests/test_more.py::test_waits" in note for note in result.notes)
    assert result.environment is not None
    assert "tests/test_more.py::test_waits" not in result.environment.outcomes
    assert result.environment.suite.options[-2:] == ("--deselect", "tests/test_more.py::test_waits")


def test_what_ends_the_process_of_the_suite_is_left_out_and_named(tiny: Tiny, wheels: Path, store: Store) -> None:
    aborts = "import os\n\ndef test_aborts():\n    os.abort()\n\ndef test_after():\n    pass\n"
    files = {"tests/test_more.py": aborts, "tests/test_exit.py": "import os\n\nos._exit(3)\n"}
    result = installed(tiny("abortpkg", files), wheels, store)
    assert result.ok and result.passed == 13 and result.environment is not None, result.reason
    left_out = ("--ignore", "tests/test_exit.py", "--deselect", "tests/test_more.py::test_aborts")
    assert result.environment.suite.options[-4:] == left_out
    assert any("tests/test_exit.py, tests/test_more.py::test_aborts" in note for note in result.notes)


class _Failing:
    """An installer whose tries all end in the same words."""

    def __init__(self, *words: str) -> None:
        self.words, self.tries, self.made = words, 5, 0

    async def propose(self) -> list[Proposal]:
        return [Proposal("python -m pytest", "a summary", "", "tests")]

    async def attempt(self, number: int, targets: Sequence[Proposal], earlier: Sequence[str]) -> UnverifiedEnvironment:
        self.made += 1
        raise InstallFailed(self.words[min(number, len(self.words)) - 1])


@pytest.mark.parametrize(
    ("words", "tries"),
    [(("it is red",), 3), (("a", "b", "it is red"), 5), (("pytest is too new",), 5), (("a", "it is red"), 4)],
)
def test_tries_that_end_alike_are_not_repeated(words: tuple[str, ...], tries: int) -> None:
    installer = _Failing(*words)
    none: Any = None
    result = asyncio.run(_try_in_turn(installer, none, none, 10.0, time.monotonic() + 60, lambda text: None, True))
    assert not result.ok and installer.made == tries and ("the same in 3 tries: " in result.reason) is (tries < 5)


def test_an_archive_without_what_its_tests_read_says_what_to_do(
    tiny: Tiny, wheels: Path, store: Store, pack: Callable[[Path, Path, str], Path], tmp_path: Path
) -> None:
    bad = "import pathlib\n\nTEXT = pathlib.Path(__file__).with_name('data.txt').read_text()\n"
    files = {"tests/test_datapkg.py": bad}
    links = tmp_path / "links"
    shutil.copytree(wheels, links)
    links.chmod(0o755)
    pack(tiny("datapkg", files), links, "datapkg-1.2")

    async def work() -> InstallResult:
        index = read_index(links)
        repo = await asyncio.to_thread(open_repo, "datapkg", repositories(store), index=index)
        async with await open_host("local", store) as host:
            return await install(repo, host, index, tries=1)

    result = asyncio.run(work())
    assert not result.ok and "clone its repository and give the folder in place of the name" in result.reason

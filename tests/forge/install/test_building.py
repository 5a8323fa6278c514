"""The environment that can build its repository: the backend is in it, and nearly nothing of its own metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from etude.forge.environments.environment import PREFIX, Environment
from etude.forge.install import strip_and_lock
from etude.forge.install.add_build_backend import building_environment
from etude.forge.install.checkout import open_repo
from etude.forge.install.install import install, repositories
from etude.forge.install.pip_settings import read_index
from etude.forge.install.result import InstallFailed
from etude.sandbox.hosts import open_host
from etude.sandbox.store.layers import Store

Tiny = Callable[..., Path]


@pytest.fixture(scope="module")
def shelf(wheels: Path, add_wheel: Callable[..., None]) -> Path:
    add_wheel(wheels, "build", "1.5", {"build/__init__.py": ""})
    return wheels


def both(root: Path, wheels: Path, store: Store, file: str = "") -> tuple[Environment, Environment]:
    async def work() -> tuple[Environment, Environment]:
        repo = open_repo(str(root), repositories(store))
        async with await open_host("local", store) as host:
            installed = await install(repo, host, read_index(wheels), tries=1)
            assert installed.environment is not None, installed.reason
            return installed.environment, await building_environment(
                repo, installed.environment, host, read_index(wheels), file
            )

    return asyncio.run(work())


def test_it_can_build_and_does_not_say_how_it_was(tiny: Tiny, shelf: Path, tmp_path: Path) -> None:
    root, store = tiny("twinpkg"), Store(tmp_path / "store")
    first, second = both(root, shelf, store)
    assert first.digest != second.digest and "build==1.5" in second.lock and first.lock in second.lock
    place = second.layer.path / PREFIX.strip("/")
    site = next((place / "lib").glob("python3*/site-packages"))
    assert (site / "build/__init__.py").is_file() and (site / "pytest").is_dir()
    info = site / "twinpkg-1.2.dist-info"
    assert [path.name for path in info.iterdir()] == ["METADATA"]
    assert (info / "METADATA").read_text() == "Metadata-Version: 2.1\nName: twinpkg\nVersion: 1.2\n"
    assert not (place / "bin/twinpkg-say").exists()
    assert (second.layer.path / "workspace/twinpkg/made_by_the_build.py").is_file()
    assert both(root, shelf, store)[1].digest == second.digest  # remembered
    other = both(root, shelf, store, "test_distribution.py")[1]
    assert other.suite.folders == ("tests", "test_distribution.py") and other.layer.digest == second.layer.digest
    assert both(root, shelf, store, "tests/test_distribution.py")[1].digest == second.digest


def test_a_backend_that_cannot_be_had_is_told(tiny: Tiny, shelf: Path, tmp_path: Path) -> None:
    root, store = tiny("lostpkg"), Store(tmp_path / "store")

    async def work() -> None:
        repo = open_repo(str(root), repositories(store))
        async with await open_host("local", store) as host:
            installed = await install(repo, host, read_index(shelf), tries=1)
            assert installed.environment is not None
            text = (repo.tree / "pyproject.toml").read_text()
            (repo.tree / "pyproject.toml").write_text(text.replace("requires = []", 'requires = ["nowhere-to-be-had"]'))
            await building_environment(repo, installed.environment, host, read_index(shelf))

    with pytest.raises(InstallFailed, match="what builds it cannot be installed"):
        asyncio.run(work())


def test_tests_that_packages_bring_along_are_not_compiled(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    for name in ("big/core.py", "big/tests/test_core.py", "big/testing/tools.py", "tests/helper.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("x = 1\n")
    strip_and_lock._compile(site)
    compiled = {path.parent.parent.relative_to(site).as_posix() for path in site.rglob("*.pyc")}
    assert compiled == {"big", "big/testing", "tests"}

"""The environment in which a repository can be built, for origins that need one."""

from __future__ import annotations

from etude.core.errors import EtudeError
from etude.forge.environments.environment import Environment
from etude.forge.install.add_build_backend import building_environment
from etude.forge.install.checkout import Repo
from etude.forge.install.pip_settings import PackageIndex
from etude.forge.install.result import InstallFailed
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.file_tree import Files


async def open_building(repo: Repo, environment: Environment, host: StoringHost, index: PackageIndex) -> Environment:
    """The environment with what builds the repository; an `EtudeError` where there is none."""
    try:
        file = free_test_file(environment, Files.scan(repo.tree))
        return await building_environment(repo, environment, host, index, file)
    except InstallFailed as error:
        raise EtudeError(f"{repo.name} cannot be built, so no packaging task can be made of it: {error}") from None


def free_test_file(environment: Environment, files: Files) -> str:
    """A free name beside the repository's tests, or at the top where those have no folder."""
    folders = [folder.strip("/") for folder in environment.suite.folders]
    there = [each for each in folders if any(path.startswith(f"{each}/") for path in files)]
    taken = {path.rpartition("/")[2] for path in files}
    names = ["test_distribution.py", *(f"test_distribution_{number}.py" for number in range(2, 99))]
    name = next(name for name in names if name not in taken)
    return f"{there[0]}/{name}" if there else name

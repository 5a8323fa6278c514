"""Tiny repositories that build themselves, and a folder of wheels to install from: nothing here needs a network."""

from __future__ import annotations

import importlib.metadata
import io
import subprocess
import tarfile
import textwrap
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

# A build backend without dependencies: the wheel holds every package of the folder.
BACKEND = """
import pathlib, zipfile
NAME, VERSION, DEPENDS = {name!r}, {version!r}, {depends!r}
INFO = f"{{NAME}}-{{VERSION}}.dist-info"

def metadata():
    return f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n" + "".join(
        f"Requires-Dist: {{each}}\\n" for each in DEPENDS)

def prepare_metadata_for_build_wheel(folder, settings=None):
    {trick}
    target = pathlib.Path(folder) / INFO
    target.mkdir()
    (target / "METADATA").write_text(metadata())
    (target / "WHEEL").write_text("Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    return INFO

def build_wheel(folder, settings=None, metadata_directory=None):
    {trick}
    file = f"{{NAME}}-{{VERSION}}-py3-none-any.whl"
    root = pathlib.Path("src") if pathlib.Path("src").is_dir() else pathlib.Path(".")
    with zipfile.ZipFile(pathlib.Path(folder) / file, "w") as wheel:
        names = [str(path.relative_to(root)) for path in sorted(root.glob(f"{{NAME}}/**/*.py"))]
        for name in names:
            wheel.write(root / name, name)
        wheel.writestr(f"{{NAME}}/made_by_the_build.py", "ANSWER = 42\\n")
        names.append(f"{{NAME}}/made_by_the_build.py")
        for script in pathlib.Path(".").glob("bin/*.py"):
            first, _, rest = script.read_text().partition("\\n")
            names.append(f"{{NAME}}-{{VERSION}}.data/scripts/{{script.name}}")
            wheel.writestr(names[-1], f"#!python\\n{{rest}}")
        for page in pathlib.Path(".").glob("docs/*.txt"):
            names.append(f"{{NAME}}-{{VERSION}}.data/data/share/{{page.name}}")
            wheel.write(page, names[-1])
        wheel.writestr(f"{{INFO}}/METADATA", metadata())
        wheel.writestr(f"{{INFO}}/entry_points.txt", f"[console_scripts]\\n{{NAME}}-say = {{NAME}}:main\\n")
        wheel.writestr(f"{{INFO}}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        info = [f"{{INFO}}/{{each}}" for each in ("METADATA", "entry_points.txt", "WHEEL", "RECORD")]
        wheel.writestr(f"{{INFO}}/RECORD", "".join(f"{{each}},,\\n" for each in [*names, *info]))
    return file

def build_sdist(folder, settings=None):
    raise RuntimeError("nobody asked for one")
"""
TESTS = """
import pytest
import {name}

@pytest.mark.parametrize("number", range(11))
def test_double(number):
    assert {name}.double(number) == 2 * number

def test_what_the_build_made():
    from {name}.made_by_the_build import ANSWER
    assert ANSWER == 42
"""

# pytest wants Pygments, and colours nothing here: as much of it as it imports.
COLOURS = {
    "pygments/__init__.py": "def highlight(code, lexer, formatter):\n    return code\n",
    "pygments/formatters/__init__.py": "",
    "pygments/formatters/terminal.py": "class TerminalFormatter:\n    pass\n",
    "pygments/lexer.py": "class Lexer:\n    pass\n",
    "pygments/lexers/__init__.py": "",
    "pygments/lexers/diff.py": "class DiffLexer:\n    pass\n",
    "pygments/lexers/python.py": "class PythonLexer:\n    pass\n",
    "pygments/util.py": "class OptionError(Exception):\n    pass\n\n\nclass ClassNotFound(Exception):\n    pass\n",
}


def write(root: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(textwrap.dedent(text).lstrip("\n"))
    return root


Tiny = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Writes a repository that installs and has twelve tests; `files` are added, `trick` runs in its build."""

    def make(name: str = "tinypkg", files: Mapping[str, str] | None = None, trick: str = "pass", **facts: str) -> Path:
        depends = [each for each in facts.get("depends", "").split(",") if each]
        root = tmp_path_factory.mktemp("repo") / name
        start = "src/" if facts.get("layout") == "src" else ""
        own = {
            "pyproject.toml": f"""
                [build-system]
                requires = []
                build-backend = "backend"
                backend-path = ["."]
                [project]
                name = "{name}"
                version = "1.2"
                """,
            "backend.py": BACKEND.format(name=name, version="1.2", depends=depends, trick=trick),
            f"{start}{name}/__init__.py": """
                def double(number):
                    return 2 * number

                def main():
                    print("usage: nothing to use")
                """,
            f"tests/test_{name}.py": TESTS.format(name=name),
        }
        return write(root, own | dict(files or {}))

    return make


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pytest as it is installed here, and two small packages of our own."""
    folder = tmp_path_factory.mktemp("wheels")
    folder.chmod(0o755)  # sandboxes of root are another user
    for name in ("pytest", "iniconfig", "packaging", "pluggy"):
        found = importlib.metadata.distribution(name)
        files = [
            file for file in found.files or [] if not str(file).startswith("..") and "__pycache__" not in str(file)
        ]
        with zipfile.ZipFile(folder / f"{name}-{found.version}-py3-none-any.whl", "w") as wheel:
            for file in files:
                wheel.write(str(file.locate()), str(file))
    make_wheel(folder, "pygments", "2.99", COLOURS)
    make_wheel(folder, "PyYAML", "6.0", {"yaml/__init__.py": "def load(text):\n    return text\n"})
    return folder


def make_wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> None:
    info = f"{name}-{version}.dist-info"
    about = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    every = {**files, **about}
    record = "".join(f"{path},,\n" for path in [*every, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**every, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


@pytest.fixture(scope="session")
def add_wheel() -> Callable[..., None]:
    """Puts a wheel of these files into a folder."""
    return make_wheel


@pytest.fixture(scope="session")
def pack() -> Callable[[Path, Path, str], Path]:
    """A source distribution of a repository."""

    def make(root: Path, folder: Path, stem: str) -> Path:
        target = folder / f"{stem}.tar.gz"
        with tarfile.open(target, "w:gz") as archive:
            archive.add(root, arcname=stem)
            text = (
                f"Metadata-Version: 2.1\nName: {stem.rpartition('-')[0]}\nVersion: {stem.rpartition('-')[2]}\n".encode()
            )
            info = tarfile.TarInfo(f"{stem}/PKG-INFO")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
        return target

    return make


@pytest.fixture(scope="session")
def commit() -> Callable[[Path], str]:
    """Makes a folder a git checkout with one more commit."""

    def make(root: Path) -> str:
        config = ["-c", "user.name=a", "-c", "user.email=a@example.invalid", "-c", "commit.gpgsign=false"]

        def git(*words: str) -> str:
            done = subprocess.run(["git", *config, *words], cwd=root, check=True, capture_output=True, text=True)
            return done.stdout.strip()

        if not (root / ".git").exists():
            git("init", "-q", "-b", "main")
        git("add", "-A")
        git("commit", "-q", "-m", "a change")
        return git("rev-parse", "HEAD")

    return make

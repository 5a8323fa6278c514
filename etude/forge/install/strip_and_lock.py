"""The end of an installation, as a program inside its sandbox: the repository's own code leaves, a lock stays.

    argv   finish PREFIX WORKSPACE (folder of pip's) REPORTS (folder for) GENERATED (files)
           shrink PREFIX WORKSPACE (copy of) WHOLE (environment) GENERATED
    stdout of finish: one JSON object: paths, lock, answer, trouble

Of what pip installed from a local folder only the metadata and the scripts stay; its modules are the workspace's, found
there file by file, and reached by a .pth. Scripts and other files that are copies of the workspace's lead there, too.
What a build made and the workspace lacks (a version file) is put aside, to lie below the workspace. Nothing printed
here is trusted: it describes a layer that then has to pass the tests.
"""

from __future__ import annotations

import compileall
import csv
import hashlib
import json
import os
import py_compile
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_DEEPEST = 3  # folders below the workspace in which a package may begin
_PTH = "workspace.pth"
# Tests that packages bring along are half of the large ones, and nobody imports them.
_UNUSED = re.compile(r"/site-packages/.*/tests?/")


def main() -> None:
    step, *paths = sys.argv[1:6]
    (_finish if step == "finish" else _shrink)(*map(Path, paths))


def _finish(prefix: Path, workspace: Path, reports: Path, generated: Path) -> None:
    """An environment of what was installed: the repository's own code out of it, and a lock of the rest printed."""
    site = _site(prefix)
    answer = _answer(prefix / "suite.json")
    own = _own(site)
    paths: list[str] = []
    trouble = ""
    for info in own:
        names = _recorded(info)
        found, trouble = _strip(names, info, site, workspace, generated)
        _lead_back([name for name in names if name.startswith("../")], site, prefix, workspace)
        paths += found
        if trouble:
            break
    paths += _editable(site, workspace)
    if not paths:
        paths = [str(each) for each in answer.get("paths") or [""]]
    # The list may come from the agent's answer.
    paths = [path for path in dict.fromkeys(paths) if ".." not in path.split("/") and not path.startswith("/")]
    lines = [str(workspace / path) if path else str(workspace) for path in paths]
    (site / _PTH).write_text("".join(f"{line}\n" for line in lines))
    lock = _lock(site, reports, {info.name for info in own})
    # Bytecode holds the time of its source, and would differ in each installation.
    for folder in list(prefix.rglob("__pycache__")):
        shutil.rmtree(folder, ignore_errors=True)
    _compile(site)
    print(json.dumps({"paths": paths, "lock": lock, "answer": answer, "trouble": trouble}))


def _shrink(prefix: Path, workspace: Path, whole: Path, generated: Path) -> None:
    """Of the repository's own metadata only name and version stay; a whole copy is made to be taken out."""
    site = _site(prefix)
    for info in _own(site):
        for name in _recorded(info):
            script = Path(os.path.normpath(site / name))
            if name.startswith("../") and script.is_relative_to(prefix / "bin"):
                script.unlink(missing_ok=True)
        head = (info / "METADATA").read_text(errors="replace").partition("\n\n")[0].splitlines()
        # The rest of the metadata is the README, in which functions may be shown.
        kept = [line for line in head if line.startswith(("Metadata-Version:", "Name:", "Version:"))]
        shutil.rmtree(info)
        info.mkdir()
        (info / "METADATA").write_text("".join(f"{line}\n" for line in kept))
    _compile(site)
    shutil.copytree(prefix, whole, symlinks=True)
    if workspace.is_dir() and any(workspace.iterdir()):
        shutil.copytree(workspace, generated, symlinks=True)


def _site(prefix: Path) -> Path:
    return next((prefix / "lib").glob("python3*/site-packages"))


def _own(site: Path) -> list[Path]:
    """The metadata of what was installed from a folder: the repository itself."""
    return [info for info in sorted(site.glob("*.dist-info")) if _is_local(info)]


def _compile(site: Path) -> None:
    # By content, not by time: the same files give the same layer, whenever they were installed.
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(site, quiet=2, rx=_UNUSED, invalidation_mode=mode, maxlevels=30)


def _answer(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
        file.unlink()
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_local(info: Path) -> bool:
    try:
        facts = json.loads((info / "direct_url.json").read_text())
    except (OSError, ValueError):
        return False
    return str(facts.get("url", "")).startswith("file:") and "dir_info" in facts


def _recorded(info: Path) -> list[str]:
    """The files of a distribution, from the folder of packages on."""
    with (info / "RECORD").open(newline="") as file:
        return [row[0] for row in csv.reader(file) if row]


def _lead_back(names: list[str], site: Path, prefix: Path, workspace: Path) -> None:
    """Scripts that are a file of the workspace run that file, and other copies become links to it."""
    for name in names:
        copy = Path(os.path.normpath(site / name))
        if not copy.is_relative_to(prefix) or copy.is_symlink() or not copy.is_file():
            continue
        data = copy.read_bytes()
        source = next((file for file in sorted(workspace.rglob(copy.name)) if _same_script(data, file)), None)
        if source is None:
            continue
        copy.unlink()
        # A script and not a link: the shebang of the workspace's file names another interpreter.
        if data.startswith(b"#!"):
            python = prefix / "bin/python"
            copy.write_text(f"#!{python}\nimport runpy\n\nrunpy.run_path({str(source)!r}, run_name='__main__')\n")
            copy.chmod(0o755)
        else:
            copy.symlink_to(source)


def _same_script(data: bytes, file: Path) -> bool:
    """Whether they are equal, but for the line that names the interpreter, which pip writes anew."""
    own = file.read_bytes() if file.is_file() and not file.is_symlink() else b""
    both = [each.partition(b"\n")[2] if each.startswith(b"#!") else each for each in (data, own)]
    return both[0] == both[1] != b""


def _strip(names: list[str], info: Path, site: Path, workspace: Path, generated: Path) -> tuple[list[str], str]:
    """Remove the distribution's modules from the environment; the folders of the workspace where they lie."""
    inside = [name for name in names if not name.startswith(("..", "/", info.name)) and not name.endswith(".pyc")]
    tops: dict[str, list[str]] = {}
    for name in inside:
        if not re.match(r"__editable__|[\w.-]+\.pth$", name):
            tops.setdefault(name.split("/")[0], []).append(name)
    paths: list[str] = []
    for top, files in tops.items():
        if not any(name.endswith(".py") for name in files):
            continue
        root = _root_of(top, files, workspace)
        if root is None:
            return paths, f"{top} is installed, but no folder of the repository holds it"
        paths.append(root)
        for name in files:
            installed, source = site / name, workspace / root / name
            # A version file, a generated parser: made by the build, and imported by the code.
            if not source.exists() and installed.is_file() and not installed.is_symlink():
                made = generated / root / name
                made.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(installed, made)
    for top, files in tops.items():
        if (site / top).is_dir() and not (site / top).is_symlink():
            _remove_files(site, files)
        else:
            (site / top).unlink(missing_ok=True)
    return paths, ""


def _remove_files(site: Path, files: list[str]) -> None:
    """File by file: a namespace package may hold other distributions beside this one."""
    for name in files:
        (site / name).unlink(missing_ok=True)
    folders = {parent for name in files for parent in Path(name).parents if str(parent) != "."}
    for folder in sorted(folders, key=lambda each: len(each.parts), reverse=True):
        shutil.rmtree(site / folder / "__pycache__", ignore_errors=True)
        # Only empty ones: another distribution may share the folder (a namespace package).
        if (site / folder).is_dir() and not any((site / folder).iterdir()):
            (site / folder).rmdir()


def _root_of(top: str, files: list[str], workspace: Path) -> str | None:
    """The folder of the workspace that holds most of these files."""
    candidates = [""]
    for where, folders, _ in os.walk(workspace):
        depth = len(Path(where).relative_to(workspace).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < _DEEPEST else []
        candidates += [str((Path(where) / name).relative_to(workspace)) for name in folders]
    scores = {
        root: sum((workspace / root / name).is_file() for name in files if name.endswith(".py"))
        for root in candidates
        if (workspace / root / top).exists()
    }
    # The folder that holds most of its files; of equals the shortest, which is the outermost.
    best = max(scores, key=lambda root: (scores[root], -len(root)), default=None)
    return best if best is not None and scores[best] else None


def _editable(site: Path, workspace: Path) -> list[str]:
    """Folders that an editable installation leads to; ours replaces its files."""
    found: list[str] = []
    for file in [*site.glob("*.pth"), *site.glob("__editable__*.py")]:
        text = file.read_text(errors="replace")
        places = [line.strip() for line in text.splitlines()] if file.suffix == ".pth" else []
        places += [place.rpartition("/")[0] for place in re.findall(rf"'({re.escape(str(workspace))}/[^']*)'", text)]
        inside = [place for place in places if f"{place}/".startswith(f"{workspace}/")]
        found += [place.removeprefix(str(workspace)).strip("/") for place in inside]
        if inside or file.name.startswith("__editable__"):
            file.unlink()
    return found


def _lock(site: Path, reports: Path, own: set[str]) -> str:
    """Every distribution with its version, and the hash of the archive that it came from."""
    hashes: dict[tuple[str, str], str] = {}
    for report in sorted(reports.glob("*.json")):
        try:
            entries = json.loads(report.read_text())["install"]
        except (OSError, ValueError, KeyError):
            continue
        for entry in entries:
            name, version = entry["metadata"]["name"], entry["metadata"]["version"]
            if found := _hash(entry.get("download_info", {})):
                hashes[_canonical(name), version] = found
    lines = []
    for info in sorted(site.glob("*.dist-info")):
        if info.name not in own:
            name, _, version = info.name.removesuffix(".dist-info").rpartition("-")
            found = hashes.get((_canonical(name), version), "")
            lines.append(f"{_canonical(name)}=={version}" + (f" --hash=sha256:{found}" if found else ""))
    return "".join(f"{line}\n" for line in lines)


def _hash(download: dict[str, Any]) -> str:
    archive = download.get("archive_info") or {}
    given = (archive.get("hashes") or {}).get("sha256") or archive.get("hash", "").removeprefix("sha256=")
    url = urlsplit(str(download.get("url", "")))
    # Where pip reports no hash for a local archive, it is made here.
    if not given and url.scheme == "file" and Path(unquote(url.path)).is_file():
        given = hashlib.sha256(Path(unquote(url.path)).read_bytes()).hexdigest()
    return given if re.fullmatch(r"[0-9a-f]{64}", given) else ""


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()

"""Patches, with git as the judge: what we make of a diff is what `git apply` makes of it, or a refusal."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.tasks.format.patches import apply


def git(folder: Path, *argv: str, stdin: str = "") -> str:
    asked = ["git", "-c", "core.autocrlf=false", "-c", "core.quotepath=false", *argv]
    done = subprocess.run(asked, cwd=folder, input=stdin.encode(), capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.decode()


def trees(seed: int) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Files before and after some edits: changed, new, deleted, emptied, without an end of line, with odd bytes."""
    rng = random.Random(seed)

    def text() -> list[str]:
        words = [
            "a",
            "b",
            "",
            "    return",
            "\x0c",
            "x\u2028y",
            "-minus",
            "+plus",
            "@@ -1 +1 @@",
            "--- a/f",
            "caf\xe9\r",
        ]
        return [rng.choice(words) + "\n" for _ in range(rng.randrange(0, 30))]

    before = {f"d{n % 2}/f{n}.py": text() for n in range(5)}
    after: dict[str, list[str]] = {}
    for path, lines in before.items():
        now = list(lines)
        for _ in range(rng.randrange(0, 4)):
            at = rng.randrange(len(now) + 1)
            now[at : at + rng.randrange(3)] = text()[: rng.randrange(4)]
        if rng.random() < 0.2 and now:
            now[-1] = now[-1].rstrip("\n")
        if rng.random() > 0.15:
            after[path] = now
    after["new/g.py"] = text()
    return ({p: "".join(t).encode() for p, t in tree.items()} for tree in (before, after))  # type: ignore[return-value]


def write(folder: Path, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


@pytest.mark.parametrize("seed", range(25))
def test_a_diff_of_git_gives_the_other_tree_in_both_directions(seed: int, tmp_path: Path) -> None:
    before, after = trees(seed)
    git(tmp_path, "init", "-q")
    write(tmp_path, before)
    git(tmp_path, "add", "-A")
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    git(tmp_path, *who, "commit", "-qm", "before")
    for path in before:
        (tmp_path / path).unlink()
    write(tmp_path, after)
    git(tmp_path, "add", "-A")
    patch = git(tmp_path, "diff", "--cached", "--no-color", "--no-renames", f"-U{seed % 4}")
    lost = {path for tree in (before, after) for path, data in tree.items() if not data}  # a diff cannot say these
    if not patch.count("\n@@ "):
        return
    found = {**before, **apply(patch, before)}
    assert {p: d for p, d in found.items() if d is not None and p not in lost} == {
        p: d for p, d in after.items() if p not in lost
    }
    back = {**after, **apply(patch, after, reverse=True)}
    assert {p: d for p, d in back.items() if d is not None and p not in lost} == {
        p: d for p, d in before.items() if p not in lost
    }


MOVE = """diff --git a/old.py b/new.py
similarity index 50%
rename from old.py
rename to new.py
--- a/old.py
+++ b/new.py
@@ -1,2 +1,2 @@
 one
-two
+three
"""


def test_a_file_that_moved_leaves_its_old_place() -> None:
    assert apply(MOVE, {"old.py": b"one\ntwo\n"}) == {"old.py": None, "new.py": b"one\nthree\n"}
    assert apply(MOVE, {"new.py": b"one\nthree\n"}, reverse=True) == {"new.py": None, "old.py": b"one\ntwo\n"}


HUNK = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.mark.parametrize(
    ("patch", "files", "sentence"),
    [
        (HUNK, {"f": b"x\n"}, "does not fit f at line 1"),
        (HUNK, {}, "f, which is not there"),
        (HUNK.replace("a/f", "a/../../etc/passwd"), {"f": b"a\n"}, "not a plain relative path"),
        (HUNK.replace("b/f", "b//abs"), {"f": b"a\n"}, "not a plain relative path"),
        (HUNK.replace("-1 +1", "-1,3 +1"), {"f": b"a\n"}, "says 3 and 1 lines"),
        ("Binary files a/f and b/f differ\n", {"f": b""}, "binary"),
        ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n", {}, "link"),
        ("--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n", {"f": b"a\n"}, "there already"),
        ("no patch at all", {}, "changes no file"),
        ("--- a/f\n+++ b/f\nno hunk\n", {"f": b"a\n"}, "no hunk"),
    ],
)
def test_what_does_not_fit_or_would_leave_its_folder_is_refused(
    patch: str, files: dict[str, bytes], sentence: str
) -> None:
    with pytest.raises(EtudeError, match=sentence):
        apply(patch, files)

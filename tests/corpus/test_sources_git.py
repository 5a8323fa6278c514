import os
import shutil
import subprocess

import pytest

from etude.core.errors import EtudeError
from etude.corpus.document import Document, Rejected
from etude.corpus.sources.table import open_sources

PLAIN = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    **{f"GIT_{who}_NAME": "A" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "a@example.org" for who in ("AUTHOR", "COMMITTER")},
}


def git(root, *argv, check=True):
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), **PLAIN}
    done = subprocess.run(
        ["git", *argv], cwd=root, env=environment, capture_output=True, text=True, check=check, timeout=120
    )
    return done.stdout.strip()


def commit(root):
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "all")


@pytest.fixture
def checkout(tree):
    root = tree({"LICENSE": "MIT License", "a.py": "a = 1\n", "pkg/b.py": "b = 1\r\n", "café.py": "c = 1\n"})
    git(root, "init", "-q", "-b", "main")
    commit(root)
    return root


def read(root, **settings):
    found = list(open_sources([{"use": "git", "path": str(root), "name": "repo", **settings}])[0].documents())
    documents = {f.path: f for f in found if isinstance(f, Document)}
    return documents, {f.path: f.reason for f in found if isinstance(f, Rejected)}


def test_tracked_files_of_head_are_read_as_committed(checkout):
    (checkout / "untracked.py").write_text("u = 1")
    (checkout / "a.py").write_text("changed = 1")
    (checkout / "pkg/b.py").unlink()
    documents, rejected = read(checkout)
    assert {path: d.text for path, d in documents.items()} == {
        "a.py": "a = 1\n",
        "café.py": "c = 1\n",
        "pkg/b.py": "b = 1\n",
    }
    assert {(d.repo, d.license) for d in documents.values()} == {("repo", "permissive")} and not rejected


def test_head_is_found_wherever_git_keeps_it(checkout, tmp_path):
    expected, _ = read(checkout)
    git(checkout, "gc", "-q")
    git(checkout, "pack-refs", "--all")
    assert read(checkout)[0] == expected
    git(checkout, "checkout", "-q", "--detach")
    assert read(checkout)[0] == expected
    git(checkout, "checkout", "-q", "-b", "feature/x-1")
    assert read(checkout)[0] == expected
    git(tmp_path, "clone", "-q", "--bare", str(checkout), "bare.git")
    assert read(tmp_path / "bare.git")[0] == expected


def test_links_submodules_and_big_blobs_are_skipped(checkout):
    (checkout / "link.py").symlink_to("/etc/passwd")
    (checkout / "big.py").write_text("x = 1\n" * 1000)
    commit(checkout)
    git(checkout, "update-index", "--add", "--cacheinfo", f"160000,{git(checkout, 'rev-parse', 'HEAD')},sub.py")
    git(checkout, "commit", "-q", "-m", "submodule")
    documents, rejected = read(checkout, max_file_bytes=1000)
    assert sorted(documents) == ["a.py", "café.py", "pkg/b.py"]
    assert rejected == {"link.py": "link or unreadable", "big.py": "too big"}


def test_nothing_that_a_hostile_checkout_configures_is_run(checkout, tmp_path):
    marker = tmp_path / "marker"
    program = tmp_path / "attack.sh"
    program.write_text(f"#!/bin/sh\ntouch '{marker}'\nexit 1\n")
    program.chmod(0o755)
    (checkout / ".gitattributes").write_text("*.py filter=evil diff=evil\n")
    commit(checkout)
    for name in ("post-index-change", "post-checkout", "pre-commit", "fsmonitor-watchman", "reference-transaction"):
        shutil.copy(program, checkout / ".git/hooks" / name)
    blob = git(checkout, "rev-parse", "HEAD:pkg/b.py")
    for key, value in {
        "core.fsmonitor": program,
        "core.hooksPath": checkout / ".git/hooks",
        "core.sshCommand": program,
        "core.pager": program,
        "core.editor": program,
        "core.alternateRefsCommand": program,
        "alias.ls-tree": f"!{program}",
        "alias.cat-file": f"!{program}",
        "filter.evil.smudge": program,
        "filter.evil.clean": program,
        "filter.evil.required": "true",
        "diff.evil.textconv": program,
        "credential.helper": program,
        "uploadpack.packObjectsHook": program,
        "protocol.ext.allow": "always",
        "extensions.partialClone": "origin",
        "core.repositoryformatversion": "1",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{program}",
        "include.path": tmp_path / "more.conf",
    }.items():
        git(checkout, "config", key, str(value))
    (checkout / ".git/objects" / blob[:2] / blob[2:]).unlink()  # git itself would fetch it through the remote

    git(checkout, "status", check=False)
    assert marker.exists(), "the attack works on plain git, or this test shows nothing"
    marker.unlink()
    git(checkout, "cat-file", "-p", blob, check=False)
    assert marker.exists(), "the lazy fetch works on plain git, or this test shows nothing"
    marker.unlink()

    documents, rejected = read(checkout)
    assert sorted(documents) == ["a.py", "café.py"]
    assert rejected == {"pkg/b.py": "link or unreadable"}
    assert not marker.exists()


def test_a_checkout_that_points_elsewhere_is_refused(checkout, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ".git").symlink_to(checkout / ".git")
    with pytest.raises(EtudeError, match="points outside"):
        read(outside)
    (outside / ".git").unlink()
    (outside / ".git").write_text(f"gitdir: {checkout}/.git\n")
    with pytest.raises(EtudeError, match="linked worktree or submodule"):
        read(outside)
    (checkout / ".git/HEAD").write_text("ref: refs/../../../../etc/passwd\n")
    with pytest.raises(EtudeError, match="cannot read HEAD"):
        read(checkout)


def test_trees_that_list_themselves_without_end_are_refused(checkout, monkeypatch):
    """Ten levels of ten entries each are 10**10 files in a few hundred bytes."""
    blob = git(checkout, "rev-parse", "HEAD:a.py")
    entry = f"100644 blob {blob}\tf.py\n"
    for _ in range(10):
        made = subprocess.run(
            ["git", "mktree"], cwd=checkout, input=entry, capture_output=True, text=True, check=True
        ).stdout.strip()
        entry = "".join(f"040000 tree {made}\td{number}\n" for number in range(10))
    head = git(checkout, "commit-tree", made, "-m", "bomb")
    (checkout / ".git/HEAD").write_text(head + "\n")
    monkeypatch.setattr("etude.corpus.sources.git.LONGEST_LISTING", 1_000_000)
    with pytest.raises(EtudeError, match="no ordinary checkout"):
        read(checkout)


def test_a_call_of_git_has_a_deadline(checkout, tmp_path, monkeypatch):
    slow = tmp_path / "bin/git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    with pytest.raises(EtudeError, match=r"took longer than 0.2 s"):
        read(checkout, timeout=0.2)


def test_what_is_no_usable_checkout_is_one_sentence(checkout, tree, tmp_path):
    (tmp_path / "plain").mkdir()
    with pytest.raises(EtudeError, match="not a git checkout"):
        read(tmp_path / "plain")
    git(tmp_path, "init", "-q", "fresh")
    with pytest.raises(EtudeError, match="no commit"):
        read(tmp_path / "fresh")
    for loose in (checkout / ".git/objects").glob("??/*"):
        loose.chmod(0o644)
        loose.write_bytes(b"broken")
    with pytest.raises(EtudeError, match="git cannot read"):
        read(checkout)

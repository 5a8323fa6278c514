"""Models by their name on the hub: from the cache, from a server of the hub's interface, and without either."""

from __future__ import annotations

import hashlib
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.pipeline import hub
from etude.pipeline.find_model import find_model

huggingface_hub = pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"a pickle, which nobody wants",
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no network."""
    for module in ("huggingface_hub.constants", "huggingface_hub._snapshot_download", "huggingface_hub.file_download"):
        monkeypatch.setattr(f"{module}.HF_HUB_CACHE", str(tmp_path), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


def put(cache: Path, *names: str) -> Path:
    """What `huggingface_hub` leaves of a download."""
    root = cache / "models--somebody--toy"
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True, exist_ok=True)
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / "main").write_text(COMMIT)
    for name in names:
        (snapshot / name).write_bytes(FILES[name])
    return snapshot


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("Qwen/Qwen3-0.6B", True), ("a/b@main", True), ("runs/quickstart/best", False), ("model", False), ("../a", False)],
)
def test_a_name_of_the_hub_has_an_owner_and_is_nothing_on_disk(name: str, is_one: bool) -> None:
    assert hub.is_hub_name(name) == is_one


def test_a_folder_that_is_missing_is_not_looked_for_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EtudeError, match="no model or run at runs/quickstrat"):
        find_model(Path("runs/quickstrat"))


def test_what_is_cached_is_found_without_a_network(cache: Path) -> None:
    snapshot = put(cache, "config.json", "tokenizer.json", "model.safetensors")
    assert find_model(Path("somebody/toy")).samefile(snapshot)


def test_without_a_network_one_sentence_says_what_to_do(cache: Path) -> None:
    with pytest.raises(EtudeError, match=r"not in the cache.*hf download somebody/toy"):
        find_model(Path("somebody/toy"))
    put(cache, "config.json")  # a plan was made with it, or a download was cut off
    assert hub.download_config("somebody/toy").is_dir()
    with pytest.raises(EtudeError, match="not in the cache"):
        find_model(Path("somebody/toy"))


def test_without_the_extra_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(EtudeError, match=r"pip install 'etude\[hub\]'"):
        find_model(Path("somebody/toy"))


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """The part of the hub's interface that a download uses, and the paths that were asked for."""
    asked: list[str] = []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path.startswith("/api/models/somebody/toy"):
                rows = [
                    {
                        "rfilename": name,
                        "type": "file",
                        "path": name,
                        "size": len(data),
                        "oid": hashlib.sha1(data).hexdigest(),
                    }
                    for name, data in FILES.items()
                ]
                tree = "/tree/" in self.path
                self._send(
                    200, json.dumps(rows if tree else {"id": "somebody/toy", "sha": COMMIT, "siblings": rows}).encode()
                )
            elif self.path.startswith("/somebody/toy/resolve/") and (name := self.path.rpartition("/")[2]) in FILES:
                self._send(200, FILES[name], {"X-Repo-Commit": COMMIT, "ETag": hashlib.sha1(FILES[name]).hexdigest()})
            else:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

        do_HEAD = do_GET

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}", asked
    listening.shutdown()


def test_a_model_is_downloaded_once_and_no_pickle_with_it(server: tuple[str, list[str]], tmp_path: Path) -> None:
    address, asked = server
    script = "import sys; from pathlib import Path; from etude.pipeline.find_model import find_model\n"
    script += "from etude.core.errors import EtudeError\n"
    script += "print(find_model(Path('somebody/toy')))\n"
    script += "try: find_model(Path('somebody/nothing'))\nexcept EtudeError as error: print(error)"
    # The library reads these when it is imported, so it gets a process of its own.
    environment = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120, cwd=Path.cwd()
    )
    assert done.returncode == 0, done.stderr
    folder, refused = done.stdout.splitlines()
    assert sorted(path.name for path in Path(folder).iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert "no model of this name on the Hugging Face hub" in refused
    assert not [path for path in asked if path.endswith(".bin")]

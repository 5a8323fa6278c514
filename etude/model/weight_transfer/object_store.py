"""Where published weights lie: a directory, or a bucket of any object store that `obstore` knows (s3://, gs://, az://).

Objects are written once and never changed. One name, the head of a chain, is swapped: only whoever read the last head
may put the next one there, so that two writers cannot both believe that they publish.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

from etude.core.durable import write_whole
from etude.core.errors import EtudeError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_SECONDS: Final = 60  # for one request to a bucket
_NO_BUCKET: Final = "NoSuchBucket"  # as S3 says it
_METADATA: Final = "169.254.169.254"  # who is asked for credentials, in a cloud, where the environment has none


class Conflict(EtudeError):
    """Somebody else changed the object since it was read."""


class ObjectStore(Protocol):
    def put(self, name: str, data: bytes) -> None:
        """Writes an object, whole or not at all."""
        ...

    def get(self, name: str) -> bytes | None:
        """An object's bytes; None where there is none."""
        ...

    def read_head(self, name: str) -> tuple[bytes | None, str]:
        """An object that is swapped, and the tag that its next writer has to show."""
        ...

    def swap_head(self, name: str, data: bytes, tag: str) -> str:
        """Replaces the object that had this tag, or none where the tag is empty; the new tag. Raises `Conflict`."""
        ...

    def names(self) -> list[str]: ...

    def delete(self, name: str) -> None: ...


class DirectoryStore:
    """A folder that writers and readers share: on one machine, or mounted on several."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EtudeError(f"weights cannot be published in {root}: {error.strerror}") from None

    def put(self, name: str, data: bytes) -> None:
        path = self.root / _checked(name)
        with self._saying(f"{name} could not be written"):
            self._be_there()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data)

    def get(self, name: str) -> bytes | None:
        with self._saying(f"{name} could not be read"):
            try:
                return (self.root / _checked(name)).read_bytes()
            except FileNotFoundError:
                self._be_there()
                return None

    def read_head(self, name: str) -> tuple[bytes | None, str]:
        data = self.get(name)
        return data, "" if data is None else hashlib.sha256(data).hexdigest()

    def swap_head(self, name: str, data: bytes, tag: str) -> str:
        with self._saying(f"{name} could not be written"), self._locked():
            if self.read_head(name)[1] != tag:
                raise Conflict(f"{name} in {self.root} was changed by somebody else")
            self.put(name, data)
        return hashlib.sha256(data).hexdigest()

    def names(self) -> list[str]:
        with self._saying("its objects could not be listed"):
            self._be_there()
            files = [path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file()]
        return sorted(name for name in files if _NAME.fullmatch(name))

    def delete(self, name: str) -> None:
        with self._saying(f"{name} could not be deleted"):
            (self.root / _checked(name)).unlink(missing_ok=True)

    def _be_there(self) -> None:
        """A mount that is away must not pass for a store without objects, nor be written beside."""
        if not self.root.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the directory is gone; is it mounted?")

    @contextmanager
    def _saying(self, what: str) -> Iterator[None]:
        """A disk that fails is a store that is away for a moment, as a bucket may be: who asked may try again."""
        try:
            yield
        except OSError as error:
            raise EtudeError(f"{self.root}: {what}: {error.strerror or error}") from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.root / ".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for one small write; the system frees it when a writer dies
            yield


class BucketStore:
    """A bucket, or a folder of one. Credentials come from the environment, as each provider's own tools read them."""

    def __init__(self, address: str) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            raise EtudeError(f"{address} needs obstore: pip install 'etude[weights]'") from None
        self.address, self._obstore = address, obstore
        # Options of a client hide what the environment says, so this one is read here: servers on one's own machine.
        plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
        client: Any = {"timeout": timedelta(seconds=_SECONDS), "allow_http": plain}
        try:
            # The library would repeat requests that take a minute each for three: who asks has a deadline of its own.
            again: Any = {"retry_timeout": timedelta(seconds=_SECONDS / 2)}
            self._store: Any = from_url(address, client_options=client, retry_config=again)
        except Exception as error:  # the library's errors have no common base
            raise EtudeError(f"{address} cannot be opened: {error}") from None

    def put(self, name: str, data: bytes) -> None:
        with self._saying(f"{name} could not be written"):
            self._obstore.put(self._store, _checked(name), data)

    def get(self, name: str) -> bytes | None:
        return self.read_head(name)[0]

    def read_head(self, name: str) -> tuple[bytes | None, str]:
        with self._saying(f"{name} could not be read"):
            try:
                found = self._obstore.get(self._store, _checked(name))
                return bytes(found.bytes()), found.meta["e_tag"] or ""
            except FileNotFoundError as missing:
                if _NO_BUCKET in str(missing):  # which says nothing of its objects
                    raise
                return None, ""

    def swap_head(self, name: str, data: bytes, tag: str) -> str:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._saying(f"{name} could not be written"):
            try:
                mode: Any = {"e_tag": tag} if tag else "create"
                return str(self._obstore.put(self._store, _checked(name), data, mode=mode)["e_tag"])
            except (AlreadyExistsError, PreconditionError):
                raise Conflict(f"{name} in {self.address} was changed by somebody else") from None

    def names(self) -> list[str]:
        with self._saying("its objects could not be listed"):
            found = [entry["path"] for page in self._obstore.list(self._store) for entry in page]
        return sorted(name for name in found if _NAME.fullmatch(name))

    def delete(self, name: str) -> None:
        with self._saying(f"{name} could not be deleted"):
            self._obstore.delete(self._store, _checked(name))

    @contextmanager
    def _saying(self, what: str) -> Iterator[None]:
        try:
            yield
        except EtudeError:
            raise
        except Exception as error:  # the library's errors have no common base
            raise EtudeError(f"{self.address}: {what}: {_said(error)}") from None


def _said(error: Exception) -> str:
    """The library's error in a line: behind its first one it shows its own structures."""
    first = str(error).strip().partition("\n")[0][:200]
    if _NO_BUCKET in str(error):
        return "there is no such bucket"
    if _METADATA not in str(error):
        return first
    keys = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    return f"the environment has no credentials for it, such as {keys} of S3 ({first})"


def open_store(address: str) -> ObjectStore:
    """The store at an address: a path, or SCHEME://..."""
    if "://" in address and not address.startswith("file://"):
        return BucketStore(address)
    return DirectoryStore(Path(address.removeprefix("file://")).expanduser())


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise EtudeError(f"{name!r} is no name of an object")
    return name

"""The docker backend: sandboxes that are containers of an engine on this machine, docker's or podman's.

For tasks that bring a Dockerfile. `image` builds one, once for each content, and gives a layer that names it; a
sandbox over that layer has the image's root. Over other layers a container has the layers' files and shows the host's
folders that they name, read-only, as the local backend does. Network is there only while an image is built.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from etude.core.errors import EtudeError
from etude.sandbox.backend import BackendHost, SandboxRecipe
from etude.sandbox.base import Capabilities, Layer, SandboxFailure
from etude.sandbox.docker.engine import COPY_SECONDS, KEPT, OWNER, Engine, Image, owner_label
from etude.sandbox.docker.files import ContainerPath, has_deletions, write_layers, write_root
from etude.sandbox.docker.sandbox import ContainerPlan, DockerSandbox
from etude.sandbox.environment import ENVIRONMENT
from etude.sandbox.identity import INSIDE
from etude.sandbox.store.layers import Store, interpreter_folders

_MARK: Final = ("/.etude", "image.json")  # the one file of a layer that is an image
_IMAGES_OWN: Final = ("PATH", "HOME", "USER", "LANG", "LC_ALL")  # of the environment: what an image decides itself


@dataclass
class Pristine:
    """A container of some layers that is never started, and what was looked at in it."""

    container: str
    folders: dict[str, dict[str, ContainerPath]] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageLayer:
    """An image as a layer, and where its programs start."""

    layer: Layer
    workdir: str


class DockerHost(BackendHost[DockerSandbox]):
    """Makes containers. `await DockerHost.open(store)`, then `start`."""

    def __init__(self, store: Store | Path, engine: Engine) -> None:
        super().__init__(store)
        self.engine = engine
        self._roots: dict[str, str] = {}  # layers -> image made of them
        self._images: dict[str, Image] = {}
        self._pristine: dict[str, Pristine] = {}
        # Two sandboxes that start at once would build the same image twice.
        self._making = asyncio.Lock()

    @classmethod
    async def open(cls, store: Store | Path, preload: Sequence[str] = ()) -> DockerHost:
        """Finds an engine that answers, and removes what orchestrators that died left in it."""
        if not sys.platform.startswith("linux"):
            raise EtudeError("the docker sandbox needs an engine on a Linux machine, and Etude on the same one")
        engine = await asyncio.to_thread(Engine.find)
        await engine.sweep()
        return cls(store, engine)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            backend="docker",
            isolated=True,
            network_off=True,
            memory=self.engine.cgroup,
            processes=self.engine.cgroup,
            disk="file size",
            kill="pid namespace",
        )

    async def image(
        self, context: Mapping[str, bytes], *, executable: Sequence[str] = (), user: str = "", seconds: float = 600.0
    ) -> ImageLayer:
        """The image that a Dockerfile and the files beside it describe: built once, then the engine's own cache.

        `executable` names the files that are programs, `user` whom programs run as unless it is the image's own. An
        `EtudeError` says why it cannot be built.
        """
        digest = hashlib.sha256()
        for path, data in sorted(context.items()):
            digest.update(f"{path in executable} {len(data)} {path}\0".encode() + data)
        tag = f"etude/task:{digest.hexdigest()[:32]}"
        async with self._making:
            found = await self.engine.image(tag)
            if found is None:
                with self.store.scratch() as scratch:
                    folder = scratch / "context"
                    for path, data in context.items():
                        file = folder / path
                        file.parent.mkdir(parents=True, exist_ok=True)
                        file.write_bytes(data)
                        file.chmod(0o755 if path in executable else 0o644)
                    found = await self.engine.build(folder, tag, label=f"{KEPT}=1", seconds=seconds)
        return self._as_layer(found, user)

    async def named_image(self, name: str, *, user: str = "", seconds: float = 600.0) -> ImageLayer:
        """An image by its name, fetched where the engine does not have it yet."""
        # It would be read as an option of the engine.
        if name.startswith("-"):
            raise EtudeError(f"{name!r} is no name of an image")
        found = await self.engine.image(name)
        if found is None:
            result = await self.engine.call(["pull", name], seconds=seconds)
            found = await self.engine.image(name)
            if found is None:
                raise EtudeError(f"{self.engine.kind} has no image {name} and could not fetch it: {result.reason}")
        return self._as_layer(found, user)

    async def open_sandbox(self, recipe: SandboxRecipe, changes: Path | None) -> DockerSandbox:
        sandbox = DockerSandbox(self, recipe, await self._plan(recipe))
        return await self._opened(sandbox, sandbox.open(changes), "the changes could not be laid over the image")

    async def pristine(self, image: str) -> Pristine:
        async with self._making:
            if image not in self._pristine:
                # `--pull=never`: a sandbox start must not reach the network, whatever the image is called.
                options = [f"--label={owner_label()}", "--network=none", "--pull=never"]
                made = await self.engine.output("create", *options, "--entrypoint=/bin/sh", image)
                self._pristine[image] = Pristine(made)
            return self._pristine[image]

    async def close(self) -> None:
        await super().close()
        for pristine in self._pristine.values():
            await self.engine.remove(pristine.container)
        for image in self._roots.values():
            await self.engine.call(["rmi", "--force", image])
        self._pristine.clear()
        self._roots.clear()

    async def _plan(self, recipe: SandboxRecipe) -> ContainerPlan:
        layers = recipe.layers
        named = {layer: found for layer in layers if (found := self._image_of(layer)) is not None}
        others = tuple(layer for layer in layers if layer not in named)
        if len(named) > 1:
            raise EtudeError("a sandbox starts over one image: two of its layers name one")
        shows: tuple[str, ...] = ()
        if named:
            ((name, user),) = named.values()
            image = await self._known(name)
            root = await self._over_image(name, others) if others else name
            variables = {name: value for name, value in ENVIRONMENT.items() if name not in _IMAGES_OWN}
            user = user or image.user
        else:
            shows = recipe.shows
            root = await self._over_nothing(layers, shows, recipe.workdir)
            python = ":".join(f"{folder}/bin" for folder in reversed(interpreter_folders()))
            path = f"{python}:{ENVIRONMENT['PATH']}" if python else ENVIRONMENT["PATH"]
            variables, user = {**ENVIRONMENT, "PATH": path}, f"{INSIDE}:{INSIDE}"
        options = [
            f"--label={owner_label()}",
            "--pull=never",
            *([] if recipe.network else ["--network=none"]),
            # Also root inside a container has no capability: it cannot change owners or mount.
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            "--ipc=private",
            # A container has nothing to end in peace, and the default of ten seconds would be waited for at each close.
            "--stop-timeout=0",
            # Engines keep logs on the host's disk, which a program could fill.
            "--log-driver=none",
            "--hostname=sandbox",
            *([f"--user={user}"] if user else []),
            *self.engine.limits(recipe.limits),
            *(f"--volume={path}:{path}:ro" for path in shows),
            *(f"--env={name}={value}" for name, value in {**variables, **recipe.env}.items()),
        ]
        return ContainerPlan(root, tuple(options), shows)

    def _as_layer(self, image: Image, user: str) -> ImageLayer:
        if user.startswith("-"):
            raise EtudeError(f"{user!r} is no name of a user")
        folder, name = _MARK
        data = json.dumps({"image": image.id, "user": user}).encode()
        self._images[image.id] = image
        return ImageLayer(self.store.add_files({name: data}, at=folder, shows=()), image.workdir)

    def _image_of(self, layer: Layer) -> tuple[str, str] | None:
        """The image that a layer names, and its user; None for one that is no image, whatever files it brings."""
        folder, name = _MARK
        file = layer.path / folder.strip("/") / name
        if file.is_symlink() or not file.is_file():
            return None
        data = file.read_bytes()
        # A program can write such a file too; only a layer of nothing else has this digest.
        if self.store.add_files({name: data}, at=folder, shows=()).digest != layer.digest:
            return None
        facts = json.loads(data)
        return str(facts["image"]), str(facts["user"])

    async def _known(self, name: str) -> Image:
        if name not in self._images:
            found = await self.engine.image(name)
            if found is None:
                text = f"{self.engine.kind} does not have image {name[:12]} any more; load the task again"
                raise SandboxFailure("store", text)
            self._images[name] = found
        return self._images[name]

    async def _over_nothing(self, layers: tuple[Layer, ...], shows: tuple[str, ...], workdir: str) -> str:
        """An image of layers alone."""
        key = _key(["", workdir, *shows, *(layer.digest for layer in layers)])
        async with self._making:
            if key not in self._roots:
                with self.store.scratch() as scratch:
                    stream = scratch / "root.tar"
                    await asyncio.to_thread(write_root, layers, shows, workdir, stream)
                    change = f"LABEL {owner_label()}"
                    result = await self.engine.output("import", "--change", change, str(stream), seconds=COPY_SECONDS)
                self._roots[key] = result.splitlines()[-1].removeprefix("sha256:")
            return self._roots[key]

    async def _over_image(self, image: str, layers: tuple[Layer, ...]) -> str:
        """An image with layers over it."""
        # An image's files can only be added to by ADD; a deletion needs a whiteout that engines write themselves.
        if any(map(has_deletions, layers)):
            raise EtudeError("a layer that deletes files cannot lie over an image: start from a snapshot instead")
        key = _key([image, *(layer.digest for layer in layers)])
        async with self._making:
            if key not in self._roots:
                with self.store.scratch() as scratch:
                    folder = scratch / "context"
                    folder.mkdir()
                    await asyncio.to_thread(write_layers, layers, folder / "layers.tar")
                    (folder / "Dockerfile").write_text(f"FROM {image}\nADD layers.tar /\n")
                    label = owner_label()
                    made = await self.engine.build(folder, f"etude/layers:{key}", label=label, seconds=COPY_SECONDS)
                self._roots[key] = made.id
            return self._roots[key]


def _key(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join([OWNER, *parts]).encode()).hexdigest()[:32]

"""The root that a program sees, made inside the sandbox's own mount namespace by the process that becomes its init.

The namespace's root is a small hidden stage; programs are changed into one folder of it, `/room`, and nothing of the
host stays reachable but what was bound into the stage:

    /layer/0..n   the layers, read-only, top one first      /skeleton     mount points, /etc, /tmp: the lowest layer
    /host/0..n    the host's folders that the layers name   /files        tmpfs of limited size: upper, work, shm
    /without-...  the same without what is mounted below    /nothing      an empty folder
    /proc, /dev   fresh and minimal (`machine_files.py`)    /room         overlay of all that, with the binds in place

Emptying a sandbox makes `/files` and `/room` again and touches nothing else. Knows no process and no message.
"""

# Mount points are strings to the kernel, and the rest goes through descriptors.
# ruff: noqa: PTH101, PTH102, PTH103, PTH110, PTH123, PTH211
from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import Final

from etude.sandbox.environment import HOME
from etude.sandbox.identity import INSIDE, TRUSTED
from etude.sandbox.local import kernel
from etude.sandbox.local.host_folders import COPIED, SEALED, HostFolders
from etude.sandbox.local.machine_files import DEVICES, MachineFiles, furnish_dev
from etude.sandbox.store.overlay_changes import OPAQUE
from etude.sandbox.store.packed_changes import unpack

PROGRAM_ROOT: Final = "/room"  # also in CRIU's images: one changed here cannot thaw what was frozen before
_UPPER: Final = "/files/upper"
# Mounted over, not used: the host's /tmp is not touched.
_STAGE: Final = "/tmp"  # noqa: S108 - a mount point that every system has; nobody else sees the mount
_STAGE_BYTES: Final = 4 << 20  # of the stage beside these copies: the skeleton and /etc
_QUIET: Final = kernel.MS_NOSUID | kernel.MS_NODEV
_ETC: Final = {
    "passwd": f"agent:x:{INSIDE}:{INSIDE}::{HOME}:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/false\n",
    "group": f"agent:x:{INSIDE}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_ETC_OF_THE_NETWORK: Final = ("hosts", "resolv.conf", "nsswitch.conf")


@dataclass(frozen=True)
class RootPlan:
    """What to build, as it came over the socket."""

    layers: list[str]  # folders on the host, top one first
    shows: HostFolders  # what of the host appears at the same place, read-only
    disk: int  # bytes
    network: bool
    workdir: str
    machine: MachineFiles
    trees: list[int]  # the layers as mounts that were made outside, where there are such
    devices: int | None  # a folder of device nodes of this sandbox's own, made outside, where there is one
    etc: dict[str, str] = field(default_factory=dict)  # further files of /etc, by name


class RootFilesystem:
    """The root of one sandbox, as its init works with it: the stage at once, the rest when it is furnished."""

    def __init__(self, plan: RootPlan, changes: int | None) -> None:
        self._plan = plan
        self._changes = changes  # packed changes to start from, kept open for resets
        self._shown: list[tuple[str, str]] = []  # path on the stage, path in the programs' root
        self._made = {"skeleton"}  # folders on the stage
        self.own_files = plan.devices is not None  # no file of the host is shown as the inode that it is there
        self.root = self.upper = -1
        self._enter_stage()
        # Layers over the skeleton: a task's own /etc/passwd wins over ours.
        stage = [*(f"/layer/{n}" for n in range(len(plan.layers))), "/skeleton"]
        self._lower_paths = ":".join(stage)
        self.lowers = [_open_folder(path) for path in stage]

    def reset(self) -> None:
        """Back to the start with a fresh upper. No program may be alive."""
        os.close(self.root)
        os.close(self.upper)
        kernel.unmount(PROGRAM_ROOT)
        kernel.unmount("/files")
        self.mount()

    def shared_memory(self) -> list[str]:
        """What programs put into /dev/shm, the only place that they can write to beside the upper."""
        return os.listdir("/files/shm")  # noqa: PTH208 - beside its kind

    def _enter_stage(self) -> None:
        """Build the stage beside the host's root, then leave the host's root for good."""
        plan = self._plan
        # Opened first: the stage covers a folder of the host, and to the sandbox's user many a parent is closed.
        layers = [] if plan.trees else [_open_path(path) for path in plan.layers]
        shows = [(path, _open_path(path)) for path in plan.shows.paths]
        devices = [] if plan.devices is not None else [(name, _open_path(f"/dev/{name}")) for name in DEVICES]
        etc = _ETC | plan.etc
        for name in _ETC_OF_THE_NETWORK if plan.network else ():
            if os.path.exists(f"/etc/{name}"):
                with open(f"/etc/{name}") as file:
                    etc[name] = file.read()
        _become_the_user()
        # Without this, mounts would spread to the host where its root is shared (systemd's default).
        kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
        # A host folder of which a part is hidden comes file by file: the standard library's modules alone are 4.5 MB.
        size = _STAGE_BYTES + sum(_whole_pages(source) for _, source in shows if _is_copied(os.fstat(source)))
        kernel.mount("tmpfs", _STAGE, "tmpfs", _QUIET, f"size={size},nr_inodes={4096 + 2 * len(shows)},mode=755")
        os.chdir(_STAGE)
        for name in ("layer", "host", "nothing", "skeleton", "files", "room", "proc", "dev"):
            os.mkdir(name)
        os.mkdir("run")  # for criu.py
        os.symlink("run", "tmp")
        for n, source in enumerate(layers):
            _show(source, f"layer/{n}", SEALED)
        for n, tree in enumerate(plan.trees):
            os.mkdir(f"layer/{n}")
            _attach(tree, f"layer/{n}")
        self._build_skeleton(etc)
        for n, (path, source) in enumerate(shows):
            self._show_host(n, path, source)
        if plan.devices is not None:
            _attach(plan.devices, "dev")
        _build_dev(devices)
        # A fresh /proc can only be mounted while the host's full one is still visible, so before the pivot.
        kernel.mount("proc", "proc", "proc", _QUIET | kernel.MS_NOEXEC)
        self._cover_proc()
        # Both names are ".": the new root lies over the old one, and one unmount takes the old one away.
        kernel.call("pivot_root", b".", b".")
        kernel.unmount(".")
        os.chdir("/")
        outside = [*plan.trees, *plan.shows.trees.values(), *([] if plan.devices is None else [plan.devices])]
        for source in [*layers, *outside, *(each for _, each in shows), *(each for _, each in devices)]:
            os.close(source)

    def _build_skeleton(self, etc: dict[str, str]) -> None:
        for folder in ("proc", "dev", "etc", "tmp", "var/tmp", HOME.strip("/"), self._plan.workdir.strip("/")):
            self._make_folder(f"skeleton/{folder}")
        os.chmod("skeleton/tmp", 0o1777)  # noqa: S103 - as everywhere
        os.chmod("skeleton/var/tmp", 0o1777)  # noqa: S103 - as everywhere
        for name, text in etc.items():
            kernel.set_file(f"skeleton/etc/{name}", text, 0o644)

    def _make_folder(self, path: str) -> None:
        """With its parents. Nobody else makes any on the stage, so nobody needs to look what is there."""
        if path not in self._made:
            above = path.rpartition("/")[0]
            if above:
                self._make_folder(above)
            os.mkdir(path)
            self._made.add(path)

    def _show_host(self, n: int, path: str, source: int) -> None:
        point = "skeleton" + path
        self._make_folder(point.rpartition("/")[0])
        stage, status = f"host/{n}", os.fstat(source)
        # Bound, the link would be followed; recreated, it leads to /usr inside.
        if stat.S_ISLNK(status.st_mode):  # as /bin -> usr/bin
            os.symlink(os.readlink("", dir_fd=source), point)
            return
        if stat.S_ISDIR(status.st_mode):
            self._make_folder(point)
            self._show_folder(source, stage, self._plan.shows.trees.get(path))
            self._shown.append((f"/{stage}", path))
            return
        _make_point(point, source)
        if _is_copied(status):
            _copy(source, stage)
            made = _open_path(stage)
            kernel.bind(made, made, SEALED)
            os.close(made)
        else:
            self.own_files = False
            _show(source, stage, SEALED)
        self._shown.append((f"/{stage}", path))

    def _show_folder(self, source: int, stage: str, tree: int | None) -> None:
        """As the lower of an overlay: its files are then inodes of this sandbox's own.

        Locks on them and watches are nobody else's, and the table of mounts names no place of the host. `tree` is the
        folder without what is mounted below it, where it was taken outside.
        """
        os.mkdir(stage)
        lower = f"/proc/self/fd/{source}"
        if tree is not None:
            # The kernel takes only mounts that are somewhere.
            lower = f"without-{stage.replace('/', '-')}"
            os.mkdir(lower)
            _attach(tree, lower)
        options = f"lowerdir={lower}:nothing,userxattr"
        try:
            kernel.mount("overlay", stage, "overlay", _QUIET | kernel.MS_RDONLY, options)
        except OSError:  # a file system that cannot be a lower: an overlay over two others, for example
            self.own_files = False
            _show(source, stage, SEALED)

    def _cover_proc(self) -> None:
        settings = _open_path("proc/sys")
        # /proc/sys is the machine's: without rights most of it refuses writes, and read-only all of it does.
        kernel.bind(settings, settings, kernel.MOUNT_ATTR_RDONLY)
        os.close(settings)
        self._plan.machine.cover("proc", "dev/null", "machine")

    def mount(self) -> None:
        """Mount the writable part, with the changes to start from, and put everything in its place."""
        # At least 8192 files, and one for each 4 KB: many small files end before the bytes do.
        size, inodes = self._plan.disk, max(8192, self._plan.disk // 4096)
        kernel.mount("tmpfs", "/files", "tmpfs", _QUIET, f"size={size},nr_inodes={inodes},mode=755")
        for name in (_UPPER, "/files/work", "/files/shm"):
            os.mkdir(name)
        os.chmod("/files/shm", 0o1777)  # noqa: S103 - as everywhere
        if self.upper < 0:  # the first time
            _try_attributes("/files/work")
        self.upper = _open_folder(_UPPER)
        if self._changes is not None:
            unpack(self._changes, self.upper)
        # `userxattr`: in a user namespace overlay may not set trusted.* attributes.
        options = f"lowerdir={self._lower_paths},upperdir={_UPPER},workdir=/files/work,userxattr"
        kernel.mount("overlay", PROGRAM_ROOT, "overlay", _QUIET, options)
        self.root = _open_path(PROGRAM_ROOT)
        for stage, point in self._shown:
            self._bind(stage, point)
        self._bind("/proc", "/proc")
        # Read-only, or a program could replace /dev/null with a file of its own.
        self._bind("/dev", "/dev", kernel.MOUNT_ATTR_RDONLY)
        self._bind("/files/shm", "/dev/shm")  # noqa: S108 - the sandbox's own

    def _bind(self, stage: str, point: str, attributes: int = 0) -> None:
        """Bind into the programs' root. A layer with a link where we mount is refused: it would lead us elsewhere."""
        try:
            target = kernel.open_beneath(self.root, point, os.O_PATH, links=False)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: a layer is in the way of {point}") from None
        source = _open_path(stage)
        kernel.bind(source, target, attributes)
        os.close(source)
        os.close(target)


def _try_attributes(folder: str) -> None:
    """Overlay marks deleted folders so, and would fail only much later. Tried on a folder that nobody needs."""
    try:
        os.setxattr(folder, OPAQUE, b"y")
    except OSError as error:
        raise OSError(error.errno, "tmpfs keeps no user attributes: Linux 6.6 or later is needed") from None


def layer_tree(path: str, owners: int) -> int:
    """A layer as a mount that is nowhere yet, read-only, with the owners that a user namespace says."""
    source = _open_path(path)
    try:
        return kernel.detached(source, SEALED, owners)
    finally:
        os.close(source)


def _become_the_user() -> None:
    """Root's sandboxes start with root's number, which means nothing in their namespace; ordinary users' are mapped.

    Ours is another than the programs', so that none of them may signal, slow down or limit us; but files that we make
    are the programs'.
    """
    if os.getuid() != INSIDE:
        os.setgroups([])
        os.setresgid(TRUSTED, TRUSTED, TRUSTED)
        os.setresuid(TRUSTED, TRUSTED, TRUSTED)
        kernel.call("setfsgid", INSIDE)
        kernel.call("setfsuid", INSIDE)


def _is_copied(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_size <= COPIED


def _whole_pages(source: int) -> int:
    page = os.sysconf("SC_PAGE_SIZE")
    return -(-os.fstat(source).st_size // page) * page


def _copy(source: int, point: str) -> None:
    """With its time: bytecode names the time of its source, and Python compiles a module again where the two differ. Of
    the standard library's modules that took two thirds of every start (0.34 s in place of 0.11 s)."""
    file = os.open(f"/proc/self/fd/{source}", os.O_RDONLY | os.O_CLOEXEC)
    copy = os.open(point, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    # By the kernel: the bytes would else fill pages of a process that was just forked.
    at = 0
    while at < COPIED and (sent := os.sendfile(copy, file, at, COPIED - at)):
        at += sent
    status = os.fstat(source)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.close(file)
    os.close(copy)


def _attach(tree: int, point: str) -> None:
    target = _open_path(point)
    kernel.attach(tree, target)
    os.close(target)


def _build_dev(devices: list[tuple[str, int]]) -> None:
    for name, source in devices:
        _show(source, f"dev/{name}", 0)
    if devices:
        folder = _open_folder("dev")
        furnish_dev(folder)
        os.close(folder)
    # `newinstance`: terminals of this sandbox only.
    options = "newinstance,ptmxmode=0666,mode=620,max=64"
    kernel.mount("devpts", "dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, options)


def _show(source: int, point: str, attributes: int) -> None:
    _make_point(point, source)
    target = _open_path(point)
    kernel.bind(source, target, attributes)
    os.close(target)


def _make_point(point: str, source: int) -> None:
    """What something of this kind can be mounted on."""
    if stat.S_ISDIR(os.fstat(source).st_mode):
        os.makedirs(point, exist_ok=True)
    elif not os.path.exists(point):
        os.close(os.open(point, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _open_path(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)


def _open_folder(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

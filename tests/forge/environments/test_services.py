"""What listens in an environment listens wherever it is used: new in each sandbox, apart from it, never the agent's."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, ToolResult
from etude.forge.environments.environment import Environment, environment_digest
from etude.forge.environments.suite_run import run_suite, run_variants
from etude.policies.scripted import Scripted
from etude.policies.table import make_policy
from etude.rollout.rollout import Scored, Void, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.sandbox.store.importing import Bounds
from etude.tasks.environment.services import Service, read_services
from etude.tasks.format.config import Installed
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.grader import GraderFailure
from etude.tasks.grading.submission import submission_of

Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]
MakeTask = Callable[..., Task]
MakeServed = Callable[..., Environment]

PORT = 7379
# Counts who asked, and tells what it has of the one that started it.
COUNTER = """#!/opt/env/bin/python
import json, os, socketserver
SEEN = {"descriptors": len(os.listdir("/proc/self/fd")) - 1, "leads": os.getsid(0) == os.getpid(), "cwd": os.getcwd()}
class Counter(socketserver.BaseRequestHandler):
    asked = 0
    def handle(self):
        if self.request.recv(1):
            Counter.asked += 1
            self.request.sendall(json.dumps(SEEN | {"asked": Counter.asked}).encode())
socketserver.TCPServer.allow_reuse_address = True
socketserver.TCPServer(("127.0.0.1", 7379), Counter).serve_forever()
"""
# Runs whatever it is sent: the worst that a service can be.
ANYTHING = """#!/opt/env/bin/python
import os, socketserver
class Anything(socketserver.BaseRequestHandler):
    def handle(self):
        exec(self.request.recv(10000))
socketserver.TCPServer(("127.0.0.1", 7379), Anything).serve_forever()
"""
ATTACK = """
for process in filter(str.isdigit, os.listdir("/proc")):
    for descriptor in ("0", "1"):
        try:
            with open(f"/proc/{process}/fd/{descriptor}", "wb", buffering=0) as file:
                file.write(b'{"refused": [], "serving": 0.0, "judge": {}}')
        except OSError:
            pass
for target in (1, -1):
    try:
        os.kill(target, 9)
    except OSError:
        pass
"""
ASK = """import json
import socket


def ask():
    with socket.create_connection(("localhost", 7379), 5) as service:
        service.sendall(b"?")
        return json.loads(service.recv(1000))
"""
SERVED = """from shop import total
from tests.ask import ask


def test_first(cart, prices):
    assert total(cart.add(ask()["asked"])) == 1


def test_again():
    assert ask()["asked"] == 2


def test_apart():
    assert ask()["descriptors"] == 3


def test_elsewhere():
    told = ask()
    assert (told["leads"], told["cwd"]) == (True, "/")
"""
FILES = {"tests/ask.py": ASK, "tests/test_served.py": SERVED}
NAMES = [f"tests/test_served.py::test_{name}" for name in ("first", "again", "apart", "elsewhere")]


@pytest.fixture(scope="module")
def served(sandboxes: Sandboxes, tiny_environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> MakeServed:
    """The tiny environment with a service, saved in the host's store."""
    _, host = sandboxes
    tree = tmp_path_factory.mktemp("served")
    shutil.copytree(tiny_environment.layer.path, tree, symlinks=True, dirs_exist_ok=True)
    (tree / "opt/env/bin").chmod(0o755)
    for name, text in (("counter", COUNTER), ("anything", ANYTHING)):
        (tree / "opt/env/bin" / name).write_text(text)
        (tree / "opt/env/bin" / name).chmod(0o755)
    shows = tiny_environment.layer.shows
    layer = host.store.add(tree, at="/", shows=shows, bounds=Bounds(link_loops=True))

    def make(*argv: str) -> Environment:
        services = (Service("counter", argv or ("/opt/env/bin/counter",), PORT),)
        suite = tiny_environment.suite
        digest = environment_digest(layer, "", ("src",), suite, {}, services=services)
        made = dataclasses.replace(tiny_environment, layer=layer, digest=digest, services=services)
        made.save(host.store.root)
        return made

    return make


BROKEN = ("/opt/env/bin/python", "-c", "import sys; sys.exit('no luck today')")
WHY = "the service counter ended with 1 and never listened on port 7379: no luck today"


def test_a_suite_finds_the_service_on_its_port_and_a_new_one_in_each_run(
    sandboxes: Sandboxes, served: MakeServed, shop_files: dict[str, str]
) -> None:
    loop, host = sandboxes
    layer = host.store.add_files({path: text.encode() for path, text in {**shop_files, **FILES}.items()})
    for _ in range(2):
        run = loop.run_until_complete(run_suite(host, served(), layer, tests=NAMES, timeout=60.0))
        assert run.outcomes == dict.fromkeys(NAMES, "passed"), (run.reason, run.texts)


def test_each_variant_has_a_service_of_its_own(
    sandboxes: Sandboxes, served: MakeServed, shop_files: dict[str, str]
) -> None:
    loop, host = sandboxes
    layer = host.store.add_files({path: text.encode() for path, text in {**shop_files, **FILES}.items()})
    variants: list[dict[str, bytes | None]] = [{"src/shop/more.py": b"1"}, {"src/shop/more.py": b"2"}]
    runs = loop.run_until_complete(run_variants(host, served(), layer, variants, tests=NAMES[:1]))
    assert [run.outcomes for run in runs] == [{NAMES[0]: "passed"}] * 2


def test_a_service_that_does_not_come_up_is_the_reason(
    sandboxes: Sandboxes, served: MakeServed, shop_files: dict[str, str]
) -> None:
    loop, host = sandboxes
    layer = host.store.add_files({path: text.encode() for path, text in shop_files.items()})
    run = loop.run_until_complete(run_suite(host, served(*BROKEN), layer, timeout=60.0))
    assert not run.complete and run.reason == WHY
    run = loop.run_until_complete(run_suite(host, served("/opt/env/bin/nothing"), layer, timeout=60.0))
    assert run.reason.endswith("never listened on port 7379: /opt/env/bin/nothing: No such file or directory")


def told(environment: Environment) -> Installed:
    return Installed(digest=environment.digest, paths=["src"])


def test_every_judge_has_the_service(sandboxes: Sandboxes, served: MakeServed, repository_task: MakeTask) -> None:
    loop, host = sandboxes
    # Each judge runs one of these: were the service another judge's as well, it would have been asked more often.
    task = repository_task(FILES, fail_to_pass=NAMES[:1], pass_to_pass=[], held_out=[], environment=told(served()))
    found = loop.run_until_complete(grade(task, host, submission_of(task, dict(task.solution))))
    assert found.passed, (found.kind, found.reason, found.details)
    null = loop.run_until_complete(grade(task, host, ()))
    assert (null.passed, null.kind) == (False, "tests")


def test_a_service_that_does_not_come_up_is_nobodys_grade(
    sandboxes: Sandboxes, served: MakeServed, repository_task: MakeTask
) -> None:
    loop, host = sandboxes
    task = repository_task(FILES, fail_to_pass=NAMES[:1], environment=told(served(*BROKEN)))
    with pytest.raises(GraderFailure) as raised:
        loop.run_until_complete(grade(task, host, ()))
    assert (raised.value.cause, str(raised.value)) == ("service", WHY)
    outcome = loop.run_until_complete(run_rollout(task, make_policy("null", task), host, build_setup()))
    assert isinstance(outcome, Void) and (outcome.cause, outcome.retry, outcome.message) == ("sandbox", True, WHY)


def test_tested_code_that_takes_a_service_over_gains_nothing_but_a_failed_grade(
    sandboxes: Sandboxes, served: MakeServed, repository_task: MakeTask, shop_files: dict[str, str]
) -> None:
    loop, host = sandboxes
    task = repository_task(environment=told(served("/opt/env/bin/anything")))
    path, hook = "src/shop/cart.py", f"import socket, time\nsocket.create_connection(('localhost', {PORT})).sendall"
    attack = f"{shop_files[path]}\n{hook}({ATTACK.encode()!r})\ntime.sleep(5)\n"
    found = loop.run_until_complete(grade(task, host, submission_of(task, {path: attack.encode()})))
    assert (found.passed, found.kind) == (False, "crash"), found.reason


def test_an_agents_commands_reach_the_service_from_first_to_last(
    sandboxes: Sandboxes, served: MakeServed, repository_task: MakeTask
) -> None:
    loop, host = sandboxes
    task = repository_task(FILES, fail_to_pass=NAMES[:1], environment=told(served()))
    shown = f"python - <<'end'\n{ASK}\nprint(ask())\nend"
    script = [Assistant(calls=(Call("run", {"command": shown}),))] * 2
    outcome = loop.run_until_complete(run_rollout(task, Scripted(script), host, build_setup()))
    assert isinstance(outcome, Scored)
    answers = [message.text for message in outcome.trajectory.messages if isinstance(message, ToolResult)]
    expected = "{'descriptors': 3, 'leads': True, 'cwd': '/', 'asked': %d}"
    assert [text.strip() for text in answers] == [expected % 1, expected % 2]


def test_an_environment_without_services_keeps_its_name_and_old_files_are_read(
    sandboxes: Sandboxes, tiny_environment: Environment
) -> None:
    _, host = sandboxes
    suite = {"kind": "pytest", "folders": ["tests"], "options": []}
    before = json.dumps([tiny_environment.layer.digest, "", ["src"], suite, [], ""])
    assert tiny_environment.digest == hashlib.sha256(before.encode()).hexdigest()
    file = host.store.root / "environments" / f"{tiny_environment.digest}.json"
    facts = json.loads(file.read_text())
    del facts["services"]
    file.write_text(json.dumps(facts))
    assert Environment.load(tiny_environment.digest, host.store) == tiny_environment


def test_services_are_part_of_an_environments_name_and_are_kept(sandboxes: Sandboxes, served: MakeServed) -> None:
    _, host = sandboxes
    one, other = served(), served("/opt/env/bin/counter", "more")
    assert one.digest != other.digest
    assert Environment.load(other.digest, host.store).services == other.services


GOOD: dict[str, Any] = {"name": "queue", "argv": ["/opt/env/bin/python", "-m", "queue_server"], "port": 5672}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("redis", "services are a list of at most 4"),
        ([GOOD] * 5, "services are a list of at most 4"),
        ([GOOD, GOOD], "two services have the same name"),
        ([GOOD, GOOD | {"name": "other"}], "two services have the same port"),
        (["redis"], "a service has name, argv and port, and nothing else"),
        ([GOOD | {"shell": True}], "a service has name, argv and port, and nothing else"),
        ([GOOD | {"name": "a b"}], "'a b' is no name for a service"),
        ([GOOD | {"name": 7}], "7 is no name for a service"),
        ([GOOD | {"argv": "/opt/env/bin/python -m queue"}], "argv of the service queue is not a list"),
        ([GOOD | {"argv": []}], "argv of the service queue is not a list"),
        ([GOOD | {"argv": ["/opt/env/bin/python", 7]}], "argv of the service queue is not a list"),
        ([GOOD | {"argv": ["/opt/env/bin/python", "a\0b"]}], "argv of the service queue is not a list"),
        ([GOOD | {"argv": ["/opt/env/bin/python"] * 33}], "argv of the service queue is not a list"),
        ([GOOD | {"argv": ["python"]}], "is not an absolute path below /opt/env"),
        ([GOOD | {"argv": ["/opt/env/../../bin/sh"]}], "is not an absolute path below /opt/env"),
        ([GOOD | {"argv": ["/opt/environment/bin/sh"]}], "is not an absolute path below /opt/env"),
        ([GOOD | {"argv": ["/opt/env/bin/python", "/workspace/server.py"]}], "has to start from /opt/env alone"),
        ([GOOD | {"port": 25}], "is not a number from 1024 to 65535"),
        ([GOOD | {"port": 70000}], "is not a number from 1024 to 65535"),
        ([GOOD | {"port": True}], "is not a number from 1024 to 65535"),
        ([GOOD | {"port": "5672"}], "is not a number from 1024 to 65535"),
    ],
)
def test_what_is_no_service_is_refused_in_a_sentence(value: Any, sentence: str) -> None:
    with pytest.raises(EtudeError) as raised:
        read_services(value)
    assert sentence in str(raised.value) and "\n" not in str(raised.value)


def test_services_are_read_as_they_are_told() -> None:
    assert read_services([GOOD]) == (Service("queue", ("/opt/env/bin/python", "-m", "queue_server"), 5672),)
    assert read_services([]) == ()

"""Tests that need a service get a stand-in: heard from what failed, installed, and there for tasks and agents."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from etude.core.policy import Assistant, Call, Policy, ToolResult
from etude.forge.gates import gates
from etude.forge.install.checkout import open_repo
from etude.forge.install.install import install, repositories
from etude.forge.install.pip_settings import read_index
from etude.forge.install.python_installer import Stage, rules
from etude.forge.install.result import InstallResult
from etude.forge.install.rules.scripted_policy import StepPolicy, Steps, run
from etude.forge.install.rules.service_stand_ins import UNNAMED, stand_ins_of
from etude.forge.leaks.audit import Leak, audit_tree
from etude.forge.leaks.deleted_code import Deleted
from etude.forge.pipeline.command import make_from
from etude.policies.scripted import Scripted, scripted
from etude.rollout.rollout import Outcome, Scored, build_setup, run_rollout
from etude.sandbox.base import WORKSPACE, Layer
from etude.sandbox.hosts import StoringHost, open_host
from etude.sandbox.store.layers import Store
from etude.tasks.environment.services import Service
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import RUNNER

Tiny = Callable[..., Path]

MAIL = """
___________________________________ test_mail __________________________________
src/post.py:4: in send
    with smtplib.SMTP(host, port) as server:
/usr/lib/python3.11/smtplib.py:255: in __init__
    (code, msg) = self.connect(host, port)
{locals}/usr/lib/python3.11/socket.py:836: in create_connection
    sock.connect(sa)
E   ConnectionRefusedError: [Errno 111] Connection refused
"""


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (
            "redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379. Connection refused.",
            [("redis", 6379)],
        ),
        (
            "ConnectionError: Error Multiple exceptions: [Errno 111] Connect call failed ('::1', 6380, 0, 0), "
            "[Errno 111] Connect call failed ('127.0.0.1', 6380) connecting to localhost:6380.",
            [("redis", 6380)],
        ),
        ("Error -3 connecting to redis:6379. Temporary failure in name resolution.", []),
        ("Error 111 connecting to 127.0.0.1:99999999999999999. Connection refused.", []),
        (
            'EndpointConnectionError: Could not connect to the endpoint URL: "http://localhost:9000/bucket"',
            [("aws", 9000)],
        ),
        (
            'EndpointConnectionError: Could not connect to the endpoint URL: "https://b.s3.eu-west-1.amazonaws.com/"',
            [("aws", 4566)],
        ),
        ('EndpointConnectionError: Could not connect to the endpoint URL: "https://minio.example.org/b"', []),
        ("botocore.exceptions.NoCredentialsError: Unable to locate credentials", [("aws", 4566)]),
        (MAIL.format(locals=""), []),
        (MAIL.format(locals="        address    = ('localhost', 2525)\n"), [("mail", 2525)]),
        (MAIL.format(locals="        address    = ('localhost', 25)\n"), []),
        (MAIL.format(locals="        address    = ('smtp.example.org', 2525)\n"), []),
        ("aiosmtplib.errors.SMTPConnectError: Error connecting to localhost on port 1025", [("mail", 1025)]),
        ("E   ConnectionRefusedError: [Errno 111] Connection refused", []),
    ],
)
def test_a_stand_in_is_asked_for_by_those_who_miss_it_here(text: str, asked: list[tuple[str, int]]) -> None:
    assert [(each.stand_in.name, each.port) for each in stand_ins_of(text)] == asked


def test_a_mail_server_that_is_missed_without_its_port_is_heard() -> None:
    assert UNNAMED.search(MAIL.format(locals="")) is not None
    other = MAIL.replace("smtplib.py", "client.py").format(locals="")
    assert UNNAMED.search(other) is None
    assert UNNAMED.search("smtplib.py:3: in x\n_____ test_other _____\nE   ConnectionRefusedError: refused") is None


def test_clients_are_told_where_the_stand_in_is() -> None:
    (asked,) = stand_ins_of('Could not connect to the endpoint URL: "http://127.0.0.1:5000/"')
    assert asked.env["AWS_ENDPOINT_URL"] == "http://127.0.0.1:5000" and asked.service["argv"][-1] == "5000"


# In place of the package, which no test may fetch: as much of it as a small ledger asks for.
FAKE = """
import socketserver

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            word, key, *rest = line.decode().split()
            if word == "PUT":
                self.server.lists.setdefault(key, []).append(rest[0])
            self.wfile.write((" ".join(self.server.lists.get(key, [])) + "\\n").encode())

class TcpFakeServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address):
        super().__init__(address, Handler)
        self.lists = {}
"""
LEDGER = {
    "till/wire.py": '''
        import socket

        PORT = 6379

        def ask(*words):
            """Send words to the store and return the words that it answers."""
            try:
                connection = socket.create_connection(("localhost", PORT), 5)
            except OSError as error:
                why = f"Error {error.errno} connecting to localhost:{PORT}. {error.strerror}."
                raise ConnectionError(why) from None
            with connection:
                connection.sendall((" ".join(words) + "\\n").encode())
                return connection.makefile().readline().split()
        ''',
    "till/ledger.py": '''
        from till.wire import ask

        def record(account, cents):
            """Add an amount to an account in the store and return the number of its entries."""
            if not cents:
                raise ValueError("nothing to record")
            return len(ask("PUT", account, str(cents)))

        def entries(account):
            """Return the amounts of an account, oldest first."""
            return [int(word) for word in ask("GET", account)]

        def balance(account, rate=0):
            """Return what an account holds, with interest in percent, rounded down."""
            held = sum(entries(account))
            if held < 0:
                return held
            return held + held * rate // 100

        def largest(account):
            """Return the largest amount of an account, or None where there is none."""
            found = entries(account)
            return max(found) if found else None
        ''',
    "tests/test_ledger.py": """
        import pytest
        from till.ledger import balance, entries, largest, record

        def filled(account, *amounts):
            for amount in amounts:
                record(account, amount)
            return account

        @pytest.mark.parametrize("amounts", [(5123,), (5417, 7031), (5902, 7741, -2093)])
        def test_entries(amounts):
            assert entries(filled(f"entries{len(amounts)}", *amounts)) == list(amounts)

        def test_record():
            assert record("first", 9) == 1

        def test_record_more():
            assert record(filled("more", 1, 2), 3) == 3

        def test_record_nothing():
            with pytest.raises(ValueError):
                record("nothing", 0)

        def test_balance():
            assert balance(filled("balance", 10441, 50173)) == 60614

        def test_balance_of_nobody():
            assert balance("nobody") == 0

        def test_interest():
            assert balance(filled("interest", 10070, 50230), rate=10) == 66330

        def test_interest_is_rounded_down():
            assert balance(filled("rounded", 7399), rate=1) == 7472

        def test_debts_bear_no_interest():
            assert balance(filled("debt", 1061, -30877), rate=10) == -29816

        def test_largest():
            assert largest(filled("large", 3011, 8363, 5209)) == 8363

        def test_largest_of_one():
            assert largest(filled("one", -4919)) == -4919

        def test_largest_of_nothing():
            assert largest("empty") is None
        """,
}
ONE = 'python -c \'from till.wire import ask; print(*ask("PUT", "seen", "by-the-agent"))\''


@pytest.fixture(scope="module")
def shelf(wheels: Path, add_wheel: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of wheels, with something that is called as the stand-in is."""
    folder = tmp_path_factory.mktemp("wheels")
    shutil.copytree(wheels, folder, dirs_exist_ok=True)
    folder.chmod(0o755)
    add_wheel(folder, "fakeredis", "2.99", {"fakeredis/__init__.py": FAKE})
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def till(tiny: Tiny) -> Path:
    return tiny("till", LEDGER)


def installed(root: Path, shelf: Path, store: Store, **more: object) -> InstallResult:
    async def work() -> InstallResult:
        repo = open_repo(str(root), repositories(store))
        async with await open_host("local", store) as host:
            return await install(repo, host, read_index(shelf), **more)  # type: ignore[arg-type]

    return asyncio.run(work())


@pytest.fixture(scope="module")
def made(till: Path, shelf: Path, store: Store) -> InstallResult:
    return installed(till, shelf, store)


def test_rules_install_a_stand_in_for_what_verification_missed(made: InstallResult) -> None:
    assert made.ok, made.reason
    assert len(made.tries) == 1 and "Error 111 connecting to localhost:6379" in made.tries[0]
    assert made.notes == ("redis is a stand-in: fakeredis, on port 6379",)
    assert made.passed == 26 and made.failed == 0
    assert made.environment is not None and "fakeredis==2.99 --hash=" in made.environment.lock
    (service,) = made.environment.services
    assert (service.name, service.argv[0], service.port) == ("redis", "/opt/env/bin/python", 6379)


def test_tasks_are_made_of_it_solved_by_the_reference_and_agents_reach_the_stand_in(
    made: InstallResult,
    till: Path,
    shelf: Path,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def audit(host: StoringHost, layers: Sequence[Layer], deleted: Sequence[Deleted]) -> list[Leak]:
        return audit_tree(layers[-1].path / WORKSPACE.strip("/"), deleted)

    monkeypatch.setattr(gates, "audit_leaks", audit)  # of a whole machine: it has tests of its own
    facts = make_from(str(till), tmp_path, 1, 0, ["deletion", "bug"], ["plain"], 1, store.root, shelf)
    assert facts["valid"] == 1, facts["rejected"]
    task = Task.load(Path(facts["tasks"][0]))

    async def work() -> list[Outcome]:
        policies = scripted("reference", task), Scripted([Assistant(calls=(Call("run", {"command": ONE}),))])
        async with await open_host("local", store, [RUNNER]) as host:
            return [await run_rollout(task, policy, host, build_setup()) for policy in policies]

    solved, looked = asyncio.run(work())
    assert isinstance(solved, Scored) and solved.passed, solved
    assert isinstance(looked, Scored) and not looked.passed and looked.grade.kind == "tests"
    answers = [message.text.strip() for message in looked.trajectory.messages if isinstance(message, ToolResult)]
    assert answers == ["by-the-agent"]


def test_an_agent_that_installs_says_which_services_and_is_told_what_was_wrong_with_them(
    till: Path, shelf: Path, tmp_path: Path
) -> None:
    serve = "import fakeredis; fakeredis.TcpFakeServer(('127.0.0.1', 6379)).serve_forever()"
    told: list[object] = [
        "/opt/env/bin/python -m fakeredis",
        ["/opt/env/bin/python", "-c", "raise SystemExit('out of order')"],
        ["/opt/env/bin/python", "-c", serve],
    ]

    def agent(stage: Stage, run_rollout: int) -> Policy:
        if stage == "explore":
            return rules(60.0)("explore", 1)

        def steps() -> Steps:
            answer = {
                "tests": ["tests"],
                "services": [{"name": "store", "argv": told[run_rollout - 1], "port": 6379}],
                "notes": ["the store is a stand-in"],
            }
            if run_rollout == 3:
                yield [run("cp -R . ~/copy && pip install ~/copy pytest fakeredis", 120)]
            yield [run(f"cat > /opt/env/suite.json <<'end'\n{json.dumps(answer)}\nend")]
            return "done"

        return StepPolicy(steps())

    result = installed(till, shelf, Store(tmp_path), agents=agent, tries=3)
    assert result.ok, result.reason
    assert [each.partition(" (")[0] for each in result.tries] == [
        "argv of the service store is not a list of 1 to 32 words",
        "the service store ended with 1 and never listened on port 6379: out of order",
    ]
    assert result.environment is not None
    assert result.environment.services == (Service("store", ("/opt/env/bin/python", "-c", serve), 6379),)

"""An agent that mends a wrong token without reading the code: it tries tokens until a file has its recorded digest.

What an installer writes down of each file of a package (`RECORD`: SHA-256 and size) says when an edit is the right one.
`PROGRAM` runs in the agent's sandbox, and prints each file that it found again.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import task_layers
from etude.tasks.format.config import Installed
from etude.tasks.format.task import WORKSPACE, Task
from redteam.grader.made_tasks import TALLY, pytest_environment, small_task
from redteam.result import SuiteResult

SECONDS = 60.0
PROGRAM = r"""
import ast, base64, glob, hashlib, io, json, sys, tokenize
known = ['<', '<=', '>', '>=', '==', '!=', 'is', 'in', '+', '-', '*', '/', '//', '%', 'and', 'or', 'not', '',
         'True', 'False', 'None', 'any', 'all', 'min', 'max', '0', '1', '2', '3', '-1']

def written(digest):
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b'=').decode()

def mended(data, name, wanted, size):
    text = data.decode()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(text)
    places = [(node.lineno, node.end_lineno) for node in ast.walk(tree) if getattr(node, 'name', '') == name]
    tokens = [each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type in (1, 2, 54)]
    inside = [each for each in tokens if any(first <= each.start[0] <= last for first, last in places)]
    words = list(dict.fromkeys([*known, *(each.string for each in inside)]))
    for each in inside:
        begin, end = (starts[line - 1] + column for line, column in (each.start, each.end))
        head, tail = text[:begin].encode(), text[end:].encode()
        before = hashlib.sha256(head)
        for word in words:
            if len(head) + len(word) + len(tail) == size:
                tried = before.copy()
                tried.update(word.encode() + tail)
                if written(tried) == wanted:
                    return head.decode() + word + tail.decode()
    return None

found = {}
for record in glob.glob(sys.argv[1] + '/lib/python*/site-packages/*.dist-info/RECORD'):
    for line in open(record):
        path, _, rest = line.strip().partition(',sha256=')
        wanted, _, size = rest.partition(',')
        for symbol in sys.argv[2:]:
            file, _, name = symbol.partition(':')
            if wanted and size and file in (path, 'src/' + path):
                text = mended(open(file, 'rb').read(), name.rpartition('.')[2], wanted, int(size))
                if text is not None:
                    found[file] = text
print(json.dumps(found))
"""


async def find_by_digest(task: Task, host: StoringHost) -> dict[str, bytes]:
    """Files of the workspace that the program brings back to what an installer recorded, where the task names the
    function that is wrong."""
    installed = task.facts.environment
    assert installed is not None
    prefix = installed.python.rpartition("/bin/")[0]
    async with await host.start(task_layers(task, host)) as sandbox:
        command = [installed.python, "-c", PROGRAM, prefix, *task.facts.deleted]
        result = await sandbox.run(command, timeout=SECONDS, max_output=8 << 20)
    return {path: text.encode() for path, text in json.loads(result.stdout or b"{}").items()}


async def run_digest_search(host: StoringHost, tasks: Sequence[Path] = ()) -> SuiteResult:
    """Nothing in the agent's sandbox may say when a file is right. Without tasks, on a small one with one wrong token
    whose environment says so itself."""
    result = SuiteResult("digest search")
    for task in [Task.load(path) for path in tasks] or [task_of_a_wrong_token(host)]:
        result.tried += 1
        if await find_by_digest(task, host):
            result.missed.append(task.name)
    return result


def task_of_a_wrong_token(host: StoringHost) -> Task:
    """The small package with one wrong token, installed as an installer does it."""
    task = small_task(host.store)
    digest = base64.urlsafe_b64encode(hashlib.sha256(TALLY.encode()).digest()).rstrip(b"=").decode()
    files = {
        "RECORD": f"tally.py,sha256={digest},{len(TALLY.encode())}\ntally-1.dist-info/RECORD,,\n",
        "direct_url.json": '{"dir_info": {}, "url": "file:///workspace"}',
    }
    name = pytest_environment(host.store, {f"tally-1.dist-info/{path}": text for path, text in files.items()})
    wrong = task.files.replaced({f"{WORKSPACE}/tally.py": TALLY.replace("total * 31", "total + 31").encode()})
    installed = Installed(digest=name, paths=["", "src"])
    facts = task.facts.model_copy(update={"environment": installed, "deleted": ["tally.py:checksum"]})
    return replace(task, name="tally-token", facts=facts, files=wrong)

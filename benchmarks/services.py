"""Three repositories whose tests need a service, installed by the rules: a Redis, an object store and a mail server.

    python benchmarks/services.py [--only cart] [--store DIR] [--json]

Each is written on the spot, has more than ten tests that use the real client (redis, boto3, smtplib), and knows nothing
of stand-ins. Prints for each whether it was installed and why not, the stand-in, the tests, the seconds of the
installation, and how many seconds its services add to the start of a sandbox (median of five). Needs a package index.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from etude.forge.environments.environment import Environment
from etude.forge.install.checkout import open_repo
from etude.forge.install.install import install, repositories
from etude.forge.install.pip_settings import read_index
from etude.sandbox.hosts import StoringHost, open_host
from etude.tasks.environment.layers import environment_variables
from etude.tasks.environment.services import serve

STARTS = 5

CART = '''"""A cart in Redis."""

import redis


class Cart:
    def __init__(self, owner):
        self.store = redis.Redis(host="localhost", decode_responses=True)
        self.key = f"cart:{owner}"

    def add(self, item, count=1):
        return self.store.hincrby(self.key, item, count)

    def remove(self, item):
        return bool(self.store.hdel(self.key, item))

    def items(self):
        return {item: int(count) for item, count in self.store.hgetall(self.key).items()}

    def total(self):
        return sum(self.items().values())

    def price(self, prices, discount=0):
        """Return what the items cost together, less a discount in percent, rounded up."""
        cents = 0
        for item, count in self.items().items():
            if item not in prices:
                raise LookupError(item)
            cents += prices[item] * count
        return cents - cents * discount // 100

    def clear(self):
        with self.store.pipeline() as pipe:
            pipe.delete(self.key)
            pipe.incr("cleared")
            return pipe.execute()[0]

    def expire(self, seconds):
        return self.store.expire(self.key, seconds)

    def checkout(self):
        with self.store.lock(f"{self.key}:lock", timeout=5):
            bought = self.items()
            self.clear()
            return bought
'''
CART_TESTS = """import pytest

from cart import Cart


@pytest.fixture
def cart(request):
    return Cart(request.node.name)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_add(cart, count):
    assert cart.add("tea", count) == count
    assert cart.items() == {"tea": count}


def test_add_twice(cart):
    cart.add("tea")
    assert cart.add("tea", 2) == 3


def test_total(cart):
    cart.add("tea", 2)
    cart.add("cup")
    assert cart.total() == 3


def test_total_of_nothing(cart):
    assert cart.total() == 0


def test_price(cart):
    cart.add("tea", 2)
    cart.add("cup")
    assert cart.price({"tea": 250, "cup": 999}) == 1499


def test_price_of_nothing(cart):
    assert cart.price({}) == 0


def test_discount(cart):
    cart.add("tea", 2)
    assert cart.price({"tea": 250}, discount=10) == 450


def test_discount_is_rounded(cart):
    cart.add("cup")
    assert cart.price({"cup": 999}, discount=50) == 500


def test_price_that_nobody_knows(cart):
    cart.add("sugar")
    with pytest.raises(LookupError):
        cart.price({"tea": 250})


def test_remove(cart):
    cart.add("tea")
    assert cart.remove("tea") and cart.items() == {}


def test_remove_what_is_not_there(cart):
    assert not cart.remove("cup")


def test_clear(cart):
    cart.add("tea")
    assert cart.clear() == 1 and cart.total() == 0


def test_carts_are_apart(cart):
    cart.add("tea")
    assert Cart("somebody else").total() == 0


def test_expire(cart):
    cart.add("tea")
    assert cart.expire(60) and 0 < cart.store.ttl(cart.key) <= 60


def test_checkout(cart):
    cart.add("tea", 4)
    assert cart.checkout() == {"tea": 4} and cart.items() == {}


def test_nothing_else_is_told(cart):
    channel = cart.store.pubsub(ignore_subscribe_messages=True)
    channel.subscribe("news")
    channel.get_message(timeout=1)
    cart.store.publish("news", "sale")
    assert channel.get_message(timeout=5)["data"] == "sale"
"""
SHELF = '''"""Notes as objects of a bucket."""

import boto3
from botocore.exceptions import ClientError


class Shelf:
    def __init__(self, bucket):
        self.client = boto3.client("s3")
        self.bucket = bucket
        self.client.create_bucket(Bucket=bucket)

    def put(self, name, text):
        self.client.put_object(Bucket=self.bucket, Key=name, Body=text.encode())

    def get(self, name):
        try:
            return self.client.get_object(Bucket=self.bucket, Key=name)["Body"].read().decode()
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                return None
            raise

    def names(self, prefix=""):
        found = self.client.list_objects_v2(Bucket=self.bucket, Prefix=prefix)
        return [each["Key"] for each in found.get("Contents", [])]

    def delete(self, name):
        self.client.delete_object(Bucket=self.bucket, Key=name)

    def copy(self, name, to):
        self.client.copy_object(Bucket=self.bucket, Key=to, CopySource={"Bucket": self.bucket, "Key": name})
'''
SHELF_TESTS = """import uuid

import pytest

from shelf import Shelf


@pytest.fixture
def shelf():
    return Shelf(f"shelf-{uuid.uuid4()}")


@pytest.mark.parametrize("text", ["", "a note", "zwei Zeilen\\n", "\\u00fcml\\u00e4ut"])
def test_put_and_get(shelf, text):
    shelf.put("note", text)
    assert shelf.get("note") == text


def test_get_what_is_not_there(shelf):
    assert shelf.get("nothing") is None


def test_put_again(shelf):
    shelf.put("note", "old")
    shelf.put("note", "new")
    assert shelf.get("note") == "new"


def test_names(shelf):
    for name in ("b", "a"):
        shelf.put(name, "")
    assert shelf.names() == ["a", "b"]


def test_no_names(shelf):
    assert shelf.names() == []


def test_names_below(shelf):
    for name in ("x/1", "x/2", "y/1"):
        shelf.put(name, "")
    assert shelf.names("x/") == ["x/1", "x/2"]


def test_delete(shelf):
    shelf.put("note", "a")
    shelf.delete("note")
    assert shelf.get("note") is None


def test_delete_what_is_not_there(shelf):
    shelf.delete("nothing")


def test_copy(shelf):
    shelf.put("note", "a")
    shelf.copy("note", "other")
    assert shelf.get("other") == "a"


def test_shelves_are_apart(shelf):
    shelf.put("note", "a")
    assert Shelf(f"shelf-{uuid.uuid4()}").names() == []
"""
POST = '''"""Mail, handed to the server of this machine."""

import smtplib
from email.message import EmailMessage

SERVER = ("localhost", 2525)


def letter(sender, to, subject, text):
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = sender, ", ".join(to), subject
    message.set_content(text)
    return message


def send(message):
    with smtplib.SMTP(*SERVER) as server:
        return server.send_message(message)


def alive():
    with smtplib.SMTP(*SERVER) as server:
        return server.noop()[0] == 250


def features():
    with smtplib.SMTP(*SERVER) as server:
        server.ehlo()
        return set(server.esmtp_features)
'''
POST_TESTS = """import pytest

import post


@pytest.mark.parametrize("to", [["b@example.org"], ["b@example.org", "c@example.org"]])
@pytest.mark.parametrize("text", ["hello\\n", "", ".\\n", "a line\\n" * 500])
def test_send(to, text):
    assert post.send(post.letter("a@example.org", to, "news", text)) == {}


def test_alive():
    assert post.alive()


def test_features():
    assert "8bitmime" in post.features()


def test_letter():
    assert post.letter("a@example.org", ["b@example.org"], "news", "x")["Subject"] == "news"


def test_send_twice():
    message = post.letter("a@example.org", ["b@example.org"], "again", "x")
    assert [post.send(message), post.send(message)] == [{}, {}]
"""
REPOSITORIES = {
    "cart": (CART, CART_TESTS, '"redis"'),
    "shelf": (SHELF, SHELF_TESTS, '"boto3"'),
    "post": (POST, POST_TESTS, ""),
}


def write(name: str, folder: Path) -> Path:
    code, tests, depends = REPOSITORIES[name]
    root = folder / name
    (root / "tests").mkdir(parents=True)
    about = f'[project]\nname = "{name}"\nversion = "1.0"\ndependencies = [{depends}]\n'
    about += f'[tool.setuptools]\npy-modules = ["{name}"]\n'
    for path, text in (("pyproject.toml", about), (f"{name}.py", code), (f"tests/test_{name}.py", tests)):
        (root / path).write_text(text)
    return root


async def added(host: StoringHost, environment: Environment) -> float:
    """Seconds that the services add to the start of a sandbox."""
    seconds = []
    env = environment_variables(environment.python, environment.env)
    for _ in range(STARTS):
        async with await host.start([environment.layer], env=env) as sandbox:
            started = time.monotonic()
            await serve(sandbox, environment.services, environment.python)
            seconds.append(time.monotonic() - started)
    return statistics.median(seconds)


async def measure(name: str, folder: Path, host: StoringHost) -> dict[str, Any]:
    repo = open_repo(str(write(name, folder)), repositories(host.store))
    found = await install(repo, host, read_index())
    row: dict[str, Any] = {"repo": name, "ok": found.ok, "reason": found.reason, "tries": list(found.tries)}
    row |= {"notes": list(found.notes), "passed": found.passed, "failed": found.failed, "seconds": found.seconds}
    if found.environment is not None:
        row |= {"services": [f"{each.name}:{each.port}" for each in found.environment.services]}
        row |= {"suite": found.environment.seconds, "start": await added(host, found.environment)}
    return row


async def work(names: list[str], store: Path | None) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        async with await open_host("local", store or Path(folder) / "store") as host:
            for name in names:
                row = await measure(name, Path(folder), host)
                rows.append(row)
                said = "; ".join(row["notes"]) if row["ok"] else row["reason"]
                tests = f"{row['passed']} passed, {row['failed']} failed, suite {row.get('suite', 0):.1f} s"
                print(f"{name:6} {'installed' if row['ok'] else 'discarded'} in {row['seconds']:.0f} s: {said}")
                print(f"       {tests}, services add {row.get('start', 0):.2f} s; earlier tries: {row['tries']}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(REPOSITORIES), action="append")
    parser.add_argument("--store", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = asyncio.run(work(given.only or list(REPOSITORIES), given.store))
    if given.json:
        print(json.dumps({"installed": sum(row["ok"] for row in rows), "rows": rows}))
    sys.exit(0 if all(row["ok"] for row in rows) else 1)


if __name__ == "__main__":
    main()

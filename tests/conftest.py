"""Every test process: one torch thread and no denormals, before anything computes.

The suite runs in two processes on two cores; a second thread in each would only make them wait for each other.
Also the pieces that tests of whole commands share: the real `etude` in a child process, and a recipe that trains in
a second; and small tokenizers with chat templates in the manner of well-known checkpoints.
"""

import asyncio
import gc
import json
import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from etude.forge.environments.environment import Environment, Suite, environment_digest
from etude.forge.leaks.minimal_host import minimal_host_folders
from etude.model.torch_process import prepare
from etude.sandbox.hosts import StoringHost, open_host
from etude.tasks.format.config import Config, Facts, Installed
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task
from etude.tasks.grading.grader import RUNNER
from redteam.grader.made_tasks import bare_pytest_layer

prepare(threads=1)
# A busy machine is no failure: by default an example that takes 200 ms is one, as is drawing them slowly.
hypothesis_settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("busy")

pytest_plugins = ["tests.engine_models", "tests.warm_children"]

Command = Callable[..., subprocess.CompletedProcess[str]]
LONGEST = ("forge", "tasks", "e2e", "learn", "rl", "redteam")  # rooms with files of half a minute and more


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No search for garbage while everything is imported, nor later among what was: a million objects that stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: two processes share the files, and a long one at the end keeps one of them waiting."""
    places = {room: place for place, room in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.relative_to(Path(__file__).parent).parts[0], len(LONGEST)))


@pytest.fixture(autouse=True)
def _threads_as_they_were() -> Iterator[None]:
    """A test that leaves torch with more threads changes the bits that later ones compare."""
    yield
    assert torch.get_num_threads() == 1


@pytest.fixture(scope="session")
def share_leak_indexes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Gives a folder of a store the leak indexes of all stores of this run, its other processes included: reading this
    machine's files for one takes 17 seconds of a processor."""
    root = tmp_path_factory.getbasetemp()
    indexes = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "leak-indexes"
    indexes.mkdir(exist_ok=True)

    def share(store: Path) -> Path:
        store.mkdir(parents=True, exist_ok=True)
        (store / "leaks").symlink_to(indexes)
        return store

    return share


@pytest.fixture(scope="session")
def sandboxes(
    tmp_path_factory: pytest.TempPathFactory, share_leak_indexes: Callable[[Path], Path]
) -> Iterator[tuple[asyncio.AbstractEventLoop, StoringHost]]:
    """Local sandboxes with the grader warm, and the loop that they live in."""
    loop = asyncio.new_event_loop()
    store = share_leak_indexes(tmp_path_factory.mktemp("store"))
    host = loop.run_until_complete(open_host("local", store, [RUNNER]))
    yield loop, host
    loop.run_until_complete(host.close())
    loop.close()


@pytest.fixture(scope="session")
def tiny_environment(sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]) -> Environment:
    """What `etude env install` makes of a repository without dependencies, made by hand: pytest and nothing else."""
    return bare_environment(sandboxes[1], None)


@pytest.fixture(scope="session")
def closed_environment(sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]) -> Environment:
    """The same that shows as little of the host as an installed one does: a leak audit reads half a second of files in
    place of 17, each start takes 50 ms more."""
    return bare_environment(sandboxes[1], minimal_host_folders())


def bare_environment(host: StoringHost, shows: tuple[str, ...] | None) -> Environment:
    layer = bare_pytest_layer(host.store, shows=shows)
    suite = Suite("pytest", ("tests",))
    digest = environment_digest(layer, "", ("src",), suite, {})
    made = Environment("tiny", "1", digest, layer, "/opt/env/bin/python", ("src",), suite, "")
    made.save(host.store.root)
    return made


SHOP = {
    "pyproject.toml": '[tool.pytest.ini_options]\nmarkers = ["slow"]\naddopts = "--strict-markers"\n',
    "src/shop/__init__.py": "from shop.cart import Cart, total\n",
    "src/shop/cart.py": """
class Cart:
    def __init__(self):
        self.items = []

    def add(self, price):
        self.items.append(checked(price))
        return self


def checked(price):
    if price < 0:
        raise ValueError("negative")
    return price


def total(cart):
    return sum(cart.items)


def unused():
    return [x for x in ()]
""",
    "tests/__init__.py": "",
    "tests/conftest.py": """
import pathlib
import pytest
from shop import Cart


@pytest.fixture
def cart():
    return Cart()


@pytest.fixture(scope="session")
def prices():
    return [int(line) for line in (pathlib.Path(__file__).parent / "data/prices.txt").read_text().split()]
""",
    "tests/data/prices.txt": "1\n2\n3\n",
    "tests/helper.py": "def filled(cart, prices):\n    [cart.add(price) for price in prices]\n    return cart\n",
    "tests/deep/__init__.py": "",
    "tests/deep/conftest.py": """
import pytest


@pytest.fixture
def cart(cart):
    return cart.add(100)
""",
    "tests/deep/test_deep.py": """
from shop import total
from ..helper import filled


def test_total_of_the_deep_cart(cart, prices):
    assert total(filled(cart, prices)) == 106
""",
    "tests/test_cart.py": """
import unittest
import pytest
from shop import Cart, total
from tests.helper import filled


def test_total(cart, prices):
    assert total(filled(cart, prices)) == 6


@pytest.mark.parametrize("price", [1, 2])
def test_one(cart, price):
    assert total(cart.add(price)) == price


@pytest.mark.xfail
def test_wanted():
    assert False


@pytest.mark.slow
def test_skipped():
    pytest.skip("not today")


class CartTest(unittest.TestCase):
    def test_negative(self):
        with self.assertRaises(ValueError):
            Cart().add(-1)
""",
}


@pytest.fixture(scope="session")
def shop_files() -> dict[str, str]:
    """A repository with fixtures, data, a package of tests and settings, as real ones have them."""
    return SHOP


SHOP_CART = "src/shop/cart.py"
SHOP_HIDDEN = """

def test_many(cart, prices):
    for price in prices * 3:
        cart.add(price)
    assert total(cart) == 18


def test_empty(cart):
    assert total(cart) == 0


def test_is_a_number(cart):
    assert isinstance(total(cart.add(4)), int)


def test_halves(cart):
    if total(cart):
        return
    assert total(cart.add(0.5)) == 0.5
"""


@pytest.fixture(scope="session")
def repository_task(tiny_environment: Environment, shop_files: dict[str, str]) -> Callable[..., Task]:
    """The shop without its `total`, with tests changed or added."""

    def make(tests: dict[str, str] | None = None, solution: dict[str, str] | None = None, **facts: Any) -> Task:
        suite = {path: text for path, text in shop_files.items() if path.startswith("tests/")}
        judged = {**suite, "tests/test_cart.py": suite["tests/test_cart.py"] + SHOP_HIDDEN, **(tests or {})}
        before = {
            **shop_files,
            SHOP_CART: shop_files[SHOP_CART].replace("return sum(cart.items)", "raise NotImplementedError"),
        }
        del before["tests/deep/test_deep.py"]  # it is held out
        answer = {SHOP_CART: shop_files[SHOP_CART]}
        files = {
            "environment/Dockerfile": b"FROM python:3.11.9\nCOPY workspace /app\n",
            f"{TESTS}/test.sh": b"#!/bin/sh\n",
            "solution/solve.sh": b"#!/bin/sh\n",
            **{f"{WORKSPACE}/{path}": text.encode() for path, text in before.items()},
            **{f"{TESTS}/{path}": text.encode() for path, text in judged.items()},
            **{f"{SOLUTION}/{path}": text.encode() for path, text in (solution or answer).items()},
        }
        known = {
            "suite": "pytest",
            "fail_to_pass": ["tests/test_cart.py::test_total", "tests/test_cart.py::test_one[2]"],
            "pass_to_pass": ["tests/test_cart.py::CartTest::test_negative"],
            "held_out": [
                *("tests/deep/test_deep.py::test_total_of_the_deep_cart", "tests/test_cart.py::test_many"),
                *("tests/test_cart.py::test_empty", "tests/test_cart.py::test_is_a_number"),
                "tests/test_cart.py::test_halves",
            ],
            "allowed_paths": ["src/**"],
            "environment": Installed(digest=tiny_environment.digest, paths=["src"]),
        }
        return Task("shop", "Do it.", Config(), Facts(**{**known, **facts}), Files(files))

    return make


CHAT = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
TOOLS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
CALLS = ["calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep", "output▁begin", "output▁end"]
KIMI = ["calls_section_begin", "calls_section_end", "call_begin", "call_argument_begin", "call_end"]
TEMPLATES: dict[str, dict[str, Any]] = {  # special tokens, ordinary added tokens, what ends a turn
    "qwen3": {"special": CHAT, "added": [*TOOLS, "<think>", "</think>"], "eos": "<|im_end|>"},
    "hermes": {"special": CHAT, "added": TOOLS, "eos": "<|im_end|>"},  # no token for thinking: it is only text
    "qwen_coder": {"special": CHAT, "added": [*TOOLS, "<think>", "</think>"], "eos": "<|im_end|>"},
    "deepseek": {
        "special": ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],
        "added": ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", *(f"<｜tool▁{name}｜>" for name in CALLS)],
        "eos": "<｜end▁of▁sentence｜>",
        "bos": "<｜begin▁of▁sentence｜>",
    },
    "kimi": {
        "special": [
            *("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
            *(f"<|tool_{name}|>" for name in KIMI),
        ],
        "added": ["<think>", "</think>"],
        "eos": "[EOS]",
    },
}
TEMPLATES["kimi_thinking"] = TEMPLATES["kimi"]


@pytest.fixture(scope="session")
def template_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each chat template in tests/templates, with a small byte-level tokenizer that has its tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    root = tmp_path_factory.mktemp("templates")
    words = r"'s|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    corpus = [
        Path(__file__).read_text(),
        "system user assistant tool\n\n" * 20,
        "read a.py\n\ndef f(x):\n    return x\n",
    ]
    for name, facts in TEMPLATES.items():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(words), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        inside = facts["special"] if name == "deepseek" else []  # its special tokens are in the vocabulary as well
        trainer = trainers.BpeTrainer(
            vocab_size=500, initial_alphabet=alphabet, special_tokens=inside, show_progress=False
        )
        tokenizer.train_from_iterator(corpus, trainer)
        tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in facts["special"]])
        tokenizer.add_tokens([AddedToken(one, special=False, normalized=False) for one in facts["added"]])
        folder = root / name
        folder.mkdir()
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": facts["eos"]}
        config |= {"bos_token": facts["bos"]} if "bos" in facts else {}
        template = (Path(__file__).parent / "templates" / f"{name}.jinja").read_text()
        if name.startswith(("qwen3", "kimi")):
            (folder / "chat_template.jinja").write_text(template)
        else:
            config["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        if name.startswith("kimi"):  # its eos_token is not what ends a turn
            ends = {"eos_token_id": tokenizer.token_to_id("<|im_end|>")}
            (folder / "generation_config.json").write_text(json.dumps(ends))
    return {name: root / name for name in TEMPLATES}


@pytest.fixture
def etude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `etude ARGUMENTS...` in an empty folder, as a person would, but in this process, which has torch already.

    What is about the process itself (signals, memory, what it loads) starts one.
    """
    from typer.testing import CliRunner

    from etude.cli.main import app

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        with monkeypatch.context() as context:
            context.chdir(tmp_path)
            context.setattr("sys.argv", ["etude", *words])
            try:
                answer = CliRunner().invoke(app, words, catch_exceptions=False)
            finally:
                torch.set_num_threads(1)  # a command takes all cores where its recipe does not say otherwise
        return subprocess.CompletedProcess(words, answer.exit_code, answer.stdout, answer.stderr)

    return run


def write_tiny(folder: Path) -> Path:
    code = folder / "code"
    code.mkdir()
    for number in range(12):
        lines = [f"def f{number}_{i}(x):\n    return x * {number * 37 + i * 11} + len(str(x))\n" for i in range(40)]
        (code / f"module{number}.py").write_text("\n".join(lines))
    chat = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "final": "hello to you"}]}
    (folder / "chats.jsonl").write_text(f"{json.dumps(chat)}\n" * 8)
    recipe = folder / "tiny.toml"
    recipe.write_text(
        f"""
        [run]
        threads = 1
        [tokens]
        vocab_size = 400
        [model]
        width = 16
        layers = 1
        heads = 2
        kv_heads = 1
        head_dim = 8
        mlp = 32
        [corpus]
        sources = [{{ use = "folder", path = {json.dumps(str(code))} }}]
        near_threshold = 1.0
        held_out = 0.2
        [pretrain]
        steps = 4
        batch_tokens = 256
        micro_tokens = 128
        sequence = 64
        eval_every = 2
        eval_tokens = 256
        save_every = 2
        [sft]
        batch_tokens = 512
        micro_tokens = 512
        sequence = 256
        """
    )
    return recipe


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A recipe of a toy model on a dozen small files: corpus and four steps take a second or two."""
    return write_tiny(tmp_path)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of that recipe after fine-tuning, trained once. Copy it to change it."""
    from etude.core import recipe
    from etude.pipeline.execute import execute

    folder = tmp_path_factory.mktemp("tiny")
    chats = f"sft.data={json.dumps(str(folder / 'chats.jsonl'))}"
    execute("sft", recipe.load(str(write_tiny(folder)), [chats, "sft.epochs=1"]), folder / "run")
    return folder / "run"

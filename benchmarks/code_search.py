"""Code search against grep: 200 questions from docstrings of 10 packages, and how fast an edit is found.

    python benchmarks/code_search.py quality [--json]
    python benchmarks/code_search.py freshness [--json]
    python benchmarks/code_search.py train OUT.safetensors

A question is the first sentence of a function's docstring; all docstrings are taken out of the text that is searched.
The word vectors are trained on other packages than those that are asked. grep has the question's words: files are
ordered by the lines that hold one (`grep`), or by how many different ones they hold (`grep_distinct`).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import random
import re
import sys
import sysconfig
import time
from collections import Counter
from pathlib import Path

from etude.harness.code_search.embedding import WordVectors
from etude.harness.code_search.index import CodeIndex
from etude.harness.code_search.pairs import Pair, bags_of, docstring_pairs, without_docstrings
from etude.harness.code_search.words import STOP
from etude.harness.code_search.workspace import WorkspaceIndex
from etude.harness.tool_context import ToolContext
from etude.rollout.rollout import temporary_host

ASKED = (
    "networkx",
    "sympy",
    "hypothesis",
    "_pytest",
    "huggingface_hub",
    "pydantic",
    "rich",
    "graphql",
    "accelerate",
    "aiohttp",
)
TRAINED = ("torch", "transformers", "numpy", "mpmath", "peft", "click", "psutil", "urllib3", "requests", "jinja2")
TRAINED += ("pygments", "markdown_it", "attr", "anyio", "packaging", "tqdm", "yaml", "torchgen", "grimp", "filelock")
TUNED = ("mypy", "pip", "setuptools", "fsspec", "openai", "schemathesis", "werkzeug")  # neither trained on nor asked
QUESTIONS = 20  # of a package
FILES = 10_000  # of the workspace whose freshness is measured
MOST_PAIRS = 30_000
TEST = re.compile(r"(^|/)(tests?|testing|conftest)(/|_|\.|$)|_test\.py$")


def files_of(package: str) -> dict[str, str]:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return {}
    root = Path(next(iter(spec.submodule_search_locations)))
    return {
        str(path.relative_to(root.parent)): path.read_text(errors="replace")
        for path in sorted(root.rglob("*.py"))
        if path.stat().st_size < 1_000_000
    }


def questions_of(files: dict[str, str], count: int, seed: int) -> list[Pair]:
    """Of functions that are no tests; a sentence that several files have would have no right answer."""
    found = [pair for path, text in files.items() if not TEST.search(path) for pair in docstring_pairs(path, text)]
    places: dict[str, set[str]] = {}
    for pair in found:
        places.setdefault(pair.question.lower(), set()).add(pair.path)
    single = [pair for pair in found if len(places[pair.question.lower()]) == 1]
    return random.Random(seed).sample(single, min(count, len(single)))


def grep(question: str, files: dict[str, str], *, distinct: bool = False, most: int = 5) -> list[str]:
    """Files by the lines that hold a word of the question, as `grep -ic` counts them; with `distinct` first by how
    many different words they hold, which is more than grep does."""
    words = {word.lower() for word in re.findall(r"\w+", question)} - STOP
    pattern = re.compile("|".join(map(re.escape, sorted(words))))

    def fit(path: str) -> tuple[int, int, str]:
        text = files[path]
        held = sum(word in text for word in words) if distinct else 0
        return -held, -sum(pattern.search(line) is not None for line in text.split("\n")), path

    return [path for _, _, path in sorted(map(fit, files))[:most]]


def train(seed: int = 0, steps: int = 1500) -> WordVectors:
    from etude.learn.word_vectors import train_word_vectors
    from etude.model.torch_process import prepare

    prepare(threads=1)
    packages = {name: files_of(name) for name in TRAINED}
    standard = Path(sysconfig.get_path("stdlib"))
    packages["standard library"] = {p.name: p.read_text(errors="replace") for p in sorted(standard.glob("*.py"))}
    rng = random.Random(seed)
    pairs = []
    for files in packages.values():
        some = [pair for path, text in files.items() for pair in docstring_pairs(path, text)]
        pairs += rng.sample(some, min(len(some), MOST_PAIRS // 6))
    rng.shuffle(pairs)
    bags = [bags_of(pair) for pair in pairs[:MOST_PAIRS]]
    began = time.process_time()
    words, vectors = train_word_vectors(bags, steps=steps, seed=seed)
    print(f"trained on {len(bags)} pairs in {time.process_time() - began:.1f} s of one core", file=sys.stderr)
    return WordVectors(tuple(words), vectors.numpy())


def quality(seed: int, vectors: WordVectors, packages: tuple[str, ...]) -> dict[str, object]:
    right: Counter[str] = Counter()
    asked, by_package = 0, {}
    for package in packages:
        files = files_of(package)
        stripped = {path: without_docstrings(text) for path, text in files.items()}
        questions = questions_of(files, QUESTIONS, seed)
        lexical, both = CodeIndex(), CodeIndex(vectors)
        for path, text in stripped.items():
            lexical.put(path, text)
            both.put(path, text)
        lowered = {path: text.lower() for path, text in stripped.items()}
        here: Counter[str] = Counter()
        for pair in questions:
            here["grep"] += pair.path in grep(pair.question, lowered)
            here["grep_distinct"] += pair.path in grep(pair.question, lowered, distinct=True)
            here["lexical"] += pair.path in [found.path for found in lexical.search(pair.question)]
            here["both"] += pair.path in [found.path for found in both.search(pair.question)]
        right += here
        asked += len(questions)
        by_package[package] = {"files": len(files), "questions": len(questions), **here}
        print(f"{package:18} {len(files):5} files  {dict(here)} of {len(questions)}", file=sys.stderr)
    shares = {name: right[name] / asked for name in ("grep", "grep_distinct", "lexical", "both")}
    return {"questions": asked, **shares, "packages": by_package}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("quality", "freshness", "train", "tune"))
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--vectors", type=Path, help="trained before; else trained now")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.what == "freshness":
        found: dict[str, object] = asyncio.run(freshness())
    else:
        vectors = WordVectors.load(options.vectors) if options.vectors else train(options.seed)
        if options.what == "train":
            vectors.save(options.out)
            return
        found = quality(options.seed, vectors, ASKED if options.what == "quality" else TUNED)
    print(json.dumps(found) if options.json else found)


async def freshness() -> dict[str, object]:
    """How long a question takes after one of 10,000 files was edited, in a real sandbox."""
    rng = random.Random(0)
    words = [rng.choice("bcdfgklmnprst") + rng.choice("aeiou") + rng.choice("bdgklmnprst") for _ in range(3000)]

    def text() -> str:
        names = [[rng.choice(words) for _ in range(3)] for _ in range(6)]
        return "\n".join(f"def {'_'.join(each)}(x):\n    return {each[0]} + x * {each[1]}\n" for each in names)

    files = {f"part{n % 100}/module{n}.py": text().encode() for n in range(FILES)}
    async with (
        temporary_host("local") as host,
        await host.start([host.store.add_files(files, at="/workspace")]) as sandbox,
    ):
        context, index = ToolContext(sandbox), WorkspaceIndex.empty(None)
        began, used = time.monotonic(), time.process_time()
        await index.refresh(context)
        built, built_cpu = time.monotonic() - began, time.process_time() - used
        seconds, cpu = [], []
        for number in range(5):
            await context.write(f"part{number}/module{number}.py", f"def zebra_stripes_{number}(x):\n    pass\n")
            began, used = time.monotonic(), time.process_time()
            found = await index.search(f"the stripes of zebra {number}", 5, context)
            seconds.append(time.monotonic() - began)
            cpu.append(time.process_time() - used)
            assert found[0].path == f"part{number}/module{number}.py", found
    return {
        "files": FILES,
        "first_seconds": round(built, 2),
        "first_cpu_seconds": round(built_cpu, 2),
        "fresh_seconds": [round(each, 3) for each in seconds],
        "fresh_cpu_seconds": [round(each, 3) for each in cpu],
    }


if __name__ == "__main__":
    main()

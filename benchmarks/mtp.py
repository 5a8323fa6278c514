"""MTP on one GPU: a model trained on this machine's own Python code, a head on it, and what speculation gives.

    python benchmarks/mtp.py text  --work DIR [--megabytes 120]       code -> token ids (no GPU)
    python benchmarks/mtp.py model --work DIR [--seconds 110]         12 blocks x 512, as long as there is time
    python benchmarks/mtp.py head  --work DIR [--seconds 40] [--joint 15]
    python benchmarks/mtp.py speed --work DIR                         acceptance and speed on held-out code
    python benchmarks/mtp.py smoke                                    a tiny model through all of it

Each prints JSON lines. Bars: acceptance of the first draft at least 0.7 on held-out code; a single stream at least 1.3
times as fast as without drafts, and at least 85% of (1 + a) / (1 + c), where c is what the head costs beside a forward.
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reference_ops import ReferenceOps

from etude.core.policy import Sampling, Version
from etude.core.settings import ComputeSettings, EngineSettings, OptimSettings
from etude.engine.cuda.draft_cache import PageMemory, PageView
from etude.engine.cuda.runner import PagedRunner
from etude.engine.engine import Engine
from etude.engine.speculate import SpeculatingRunner
from etude.learn.learner import Learner
from etude.learn.loop import labelled
from etude.learn.mtp import acceptance, attach
from etude.model.checkpoint.directory import load_model, save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.packed_forward import Packed
from etude.model.size import parameters
from etude.model.training import set_up
from etude.tokens.tokenizer import Tokenizer

VOCAB, SEQUENCE, HELD_OUT = 8192, 1024, 1_000_000
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def say(what: str, **facts: Any) -> None:
    rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in facts.items()}
    print(json.dumps({"what": what, **rounded}), flush=True)


class Stream:
    """Token ids cut into sequences of one length, in a shuffled order, again and again."""

    def __init__(self, ids: np.ndarray, seed: int, length: int = SEQUENCE) -> None:
        self.pieces_NS = ids[: len(ids) // length * length].reshape(-1, length)
        self.order = np.random.default_rng(seed).permutation(len(self.pieces_NS))
        self.next = 0

    def take(self, tokens: int) -> list[np.ndarray]:
        count = max(1, tokens // self.pieces_NS.shape[1])
        places = [self.order[(self.next + i) % len(self.order)] for i in range(count)]
        self.next += count
        return [self.pieces_NS[place] for place in places]

    def position(self) -> dict[str, Any]:
        return {"next": self.next}

    def seek(self, position: Mapping[str, Any]) -> None:
        self.next = int(position["next"])


def code_files() -> Iterator[Path]:
    """Of the standard library and the packages installed beside it, in an order that mixes them."""
    roots = [Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))]
    found = {path for root in roots for path in root.rglob("*.py") if path.is_file() and not path.is_symlink()}
    yield from sorted(found, key=lambda path: hash_of(path.as_posix()))


def hash_of(name: str) -> int:
    from etude.corpus.stable_random import stable_hash

    return stable_hash("mtp benchmark", name)


def text(work: Path, megabytes: float, vocab: int = VOCAB) -> None:
    """Each file once; whole files are held out, and no copy of one of their texts is trained on."""
    work.mkdir(parents=True, exist_ok=True)
    began, size, texts, seen = time.monotonic(), 0, [], set()
    for path in code_files():
        try:
            content = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        key = hash_of(content)
        if 200 < len(content) < 200_000 and key not in seen:
            seen.add(key)
            texts.append(content)
            size += len(content)
        if size > megabytes * 1e6:
            break
    tokenizer = Tokenizer.train(texts[: len(texts) // 12], vocab)
    tokenizer.save(work / "tokenizer")
    end = tokenizer.control["end_of_text"]
    rows: list[np.ndarray] = []
    for first in range(0, len(texts), 200):
        for ids in tokenizer.encode_batch(texts[first : first + 200]):
            rows.append(np.array([*ids, end], np.uint16))
    ids = np.concatenate(rows)
    kept_out = min(HELD_OUT, len(ids) // 10)
    np.save(work / "held_out.npy", ids[:kept_out])
    np.save(work / "partial.npy", ids[kept_out + SEQUENCE :])
    (work / "partial.npy").rename(work / "train.npy")
    say("text", files=len(texts), megabytes=size / 1e6, tokens=len(ids), seconds=time.monotonic() - began)


def train(
    learner: Learner,
    stream: Stream,
    seconds: float,
    batch: int,
    heads: Sequence[tuple[str, float]],
    main: bool,
    what: str,
) -> None:
    """As many steps as fit the time, the schedule laid over them once the speed is known."""
    sizes_V = np.ones(learner.decoder.config.vocab_size, np.int64)
    learner.total_steps = 500  # a guess, for the warm-up
    began = marked = time.monotonic()
    marked_steps, tokens = 0, 0
    while learner.steps < learner.total_steps:
        pieces = [(ids.astype(np.int64), np.ones(len(ids), np.float32)) for ids in stream.take(batch)]
        metrics = learner.forward_backward(labelled(pieces, heads, sizes_V, main).batch)
        report = learner.step()
        tokens += batch
        now = time.monotonic()
        if learner.steps == 3:  # what is compiled is compiled
            marked, marked_steps = now, 3
        if learner.steps in (13, 60):
            speed = (learner.steps - marked_steps) / (now - marked)
            learner.total_steps = learner.steps + max(1, int((seconds - (now - began)) * speed))
        if learner.steps % 50 == 0 or learner.steps == learner.total_steps:
            losses = {name: metrics[name] for name in ("label_loss", "mainhead_loss") if name in metrics}
            say(
                what,
                step=learner.steps,
                of=learner.total_steps,
                seconds=now - began,
                **losses,
                norm=report["grad_norm"],
            )
    say(f"{what} done", steps=learner.steps, tokens=tokens, tokens_per_second=tokens / (time.monotonic() - began))


def held_out_loss(learner: Learner, stream: Stream, tokens: int) -> float:
    from etude.learn.streams import Item

    scores = learner.score([Item(ids.astype(np.int64), ()) for ids in stream.take(tokens)])
    return float(-np.mean([score[1:].mean() for score in scores]))


def new_model(vocab: int, small: bool, experts: bool = False) -> Decoder:
    shape = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 8}
    if small:
        shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    head = shape["hidden_size"] // shape["num_attention_heads"]
    kv_heads = shape["num_attention_heads"] // 2
    if experts:
        shape |= {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 384}
        return Decoder(
            ModelConfig(vocab_size=vocab, **shape, num_key_value_heads=kv_heads, head_dim=head, model_type="qwen3_moe")
        )
    return Decoder(ModelConfig(vocab_size=vocab, **shape, num_key_value_heads=kv_heads, head_dim=head))


def model(work: Path, seconds: float, small: bool = False, compile_blocks: bool = True, experts: bool = False) -> None:
    vocab = Tokenizer.load(work / "tokenizer").vocab_size
    decoder = new_model(vocab, small, experts).to(DEVICE)
    set_up(decoder, ComputeSettings(compile=compile_blocks), DEVICE)
    say("shape", parameters=parameters(decoder.config), blocks=decoder.config.num_hidden_layers, device=DEVICE)
    batch = 4096 if small else 131_072
    learner = Learner(decoder, OptimSettings(lr=6e-3, muon_lr=4e-3, decay=0.5), 1, batch if small else 65_536, DEVICE)
    stream = Stream(np.load(work / "train.npy", mmap_mode="r"), 0)
    train(learner, stream, seconds, batch, (), True, "model")
    held = Stream(np.load(work / "held_out.npy"), 1)
    say("model", held_out_loss=held_out_loss(learner, held, 16_384 if small else 524_288))
    save_model(work / ("experts" if experts else "model"), decoder)


def head(work: Path, seconds: float, joint: float, small: bool = False, compile_blocks: bool = True) -> None:
    stream = Stream(np.load(work / "train.npy", mmap_mode="r"), 7)
    held = Stream(np.load(work / "held_out.npy"), 1)
    decoder = attach(load_model(work / "model", DEVICE), 1, 0)
    set_up(decoder, ComputeSettings(compile=compile_blocks), DEVICE)
    batch, micro = (4096, 4096) if small else (131_072, 65_536)
    first = held.position()

    def measure(what: str) -> None:
        held.seek(first)
        found = acceptance(decoder, held, 16_384 if small else 262_144, 32_768)
        say(what, **found)

    measure("acceptance before")
    for name, parameter in decoder.named_parameters():
        parameter.requires_grad_(name.startswith("mtp."))
    learner = Learner(decoder, OptimSettings(lr=6e-3, muon_lr=4e-3, decay=0.5), 1, micro, DEVICE)
    train(learner, stream, seconds, batch, [("mtp.1", 1.0)], False, "head")
    measure("acceptance, model frozen")
    save_model(work / "frozen", decoder)
    if joint:
        decoder.requires_grad_(True)
        learner = Learner(decoder, OptimSettings(lr=1e-3, muon_lr=7e-4, decay=0.8), 1, micro, DEVICE)
        train(learner, stream, joint, batch, [("mtp.1", 0.3)], True, "joint")
        measure("acceptance, trained jointly")
        held.seek(first)
        say("joint", held_out_loss=held_out_loss(learner, held, 16_384 if small else 524_288))
    save_model(work / "drafting", decoder)


def one_by_one(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int, temperature: float) -> dict[str, Any]:
    """A single stream: each request alone; the first is for warming up."""
    spent, sampled, requests = 0.0, 0, []
    before = engine.stats()
    for number, prompt in enumerate(prompts):
        request = engine.submit(prompt, Sampling(max_tokens=tokens, temperature=temperature, seed=number))
        while not request.logprobs:
            engine.step()
        done, began = len(request.logprobs), time.perf_counter()
        while engine.busy:
            engine.step()
        if number:
            spent += time.perf_counter() - began
            sampled += len(request.logprobs) - done
        requests.append(request)
    facts = engine.stats()
    kept, made = (int(facts.get(name, 0)) - int(before.get(name, 0)) for name in ("accepted.1", "drafted.1"))
    share = kept / max(1, made)
    step_ms = 1e3 * spent / sampled * (1 + share)
    return {"tokens_per_second": sampled / spent, "accepted": share, "step_ms": step_ms, "requests": requests}


def record_all(engine: Engine) -> None:
    runner = engine.runner
    if (isinstance(runner, SpeculatingRunner) and runner.graphs is not None) or isinstance(runner, PagedRunner):
        runner.graphs.record_all()


def replay_ms(engine: Engine) -> float:
    """A step of one row by itself, without the host: the recorded graph again and again."""
    runner = engine.runner
    if isinstance(runner, SpeculatingRunner) and runner.graphs is not None:
        return 1e3 * timed(runner.graphs._find(1)[1])
    assert isinstance(runner, PagedRunner)
    return 1e3 * timed(runner.graphs._find(1)[1])


def drift(decoder: Decoder, requests: Sequence[Any], temperature: float) -> dict[str, float]:
    """How far the log-probabilities that the engine told lie from those of a forward over the whole text."""
    packed = Packed(decoder, [np.array(r.tokens) for r in requests], [temperature] * len(requests))
    scores = torch.split(packed.scores(), packed.lengths)
    told = [np.array(r.logprobs) for r in requests]
    pairs = zip(scores, requests, told, strict=True)
    ratio = np.concatenate([s[len(r.prompt) :].double().cpu().numpy() - t for s, r, t in pairs])
    return {"k3": float((np.expm1(ratio) - ratio).mean()), "mean": float(np.abs(ratio).mean()), "tokens": len(ratio)}


def timed(call: Callable[[], Any], times: int = 50) -> float:
    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            call()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - began) / times)
    return float(np.median(found))


def replayed(work: Callable[[], Any], times: int = 50) -> float:
    """Seconds of one call, as a graph where there is a GPU."""
    for _ in range(3):
        work()
    if DEVICE != "cuda":
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return timed(graph.replay, times)


def plain(decoder: Decoder, settings: EngineSettings) -> Engine:
    """Without drafts, the fastest way there is: graphs, each step launched before the last is read."""
    runner = PagedRunner(decoder, replace(settings, speculate=0), None if DEVICE == "cuda" else ReferenceOps())
    return Engine(decoder, replace(settings, speculate=0), Version(0, 0), runner)


def drafting(decoder: Decoder, settings: EngineSettings) -> Engine:
    settings = replace(settings, speculate=1)
    memory = PageMemory(decoder, settings, None if DEVICE == "cuda" else ReferenceOps())
    return Engine(decoder, settings, Version(0, 0), SpeculatingRunner(decoder, settings, memory))


@torch.inference_mode()
def cost_of_a_head(decoder: Decoder) -> dict[str, float]:
    """c: one token through the head and its logits, beside one token through the model and its logits.

    Also what a second token beside the first costs, of both.
    """
    settings = EngineSettings(max_running=1, cache_tokens=1024, max_length=1024, speculate=1)
    memory = PageMemory(decoder, settings, None if DEVICE == "cuda" else ReferenceOps())
    table_M = torch.arange(memory.width, device=DEVICE, dtype=torch.int32)
    found = {}
    for new in (1, 2):
        ids_T = torch.arange(5, 5 + new, device=DEVICE)
        positions_T = torch.arange(500, 500 + new, device=DEVICE, dtype=torch.int32)
        view = PageView(memory, positions_T, table_M.expand(new, -1).contiguous())
        hidden_TD = view.hidden(ids_T)
        found[f"model_{new}_ms"] = 1e3 * replayed(lambda: view.logits(view.hidden(ids_T)))  # noqa: B023
        found[f"head_{new}_ms"] = 1e3 * replayed(lambda: view.logits(view.ahead(1, hidden_TD, ids_T)[:1]))  # noqa: B023
    return found | {"c": found["head_1_ms"] / found["model_1_ms"]}


def speed(work: Path, small: bool = False, name: str = "drafting", profile: bool = False) -> None:
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    decoder = load_model(work / name, DEVICE, dtype)
    held = Stream(np.load(work / "held_out.npy"), 3)
    count, length, tokens = (3, 64, 32) if small else (9, 256, 384)
    prompts = [ids[:length].astype(int).tolist() for ids in held.take(count * SEQUENCE)]
    base = EngineSettings(max_running=1, cache_tokens=8192, max_length=1024, prefill_tokens=1024)
    cost = cost_of_a_head(decoder)
    say("cost", **cost)
    engines = {"plain": plain(decoder, base), "drafts": drafting(decoder, base)}
    for temperature in (1.0, 0.0):
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in engines}
        for turn in range(1 if small else 3):  # in turns, so that a busy moment meets both
            for side, engine in engines.items():
                found[side].append(one_by_one(engine, prompts, tokens, temperature))
                facts = {k: v for k, v in found[side][-1].items() if k != "requests"}
                drifted = drift(decoder, found[side][-1]["requests"], temperature or 1.0) if not turn else {}
                say("single stream", side=side, temperature=temperature, **facts, **drifted)
        best = {side: max(runs, key=lambda run: run["tokens_per_second"]) for side, runs in found.items()}
        accepted = best["drafts"]["accepted"]
        gain = best["drafts"]["tokens_per_second"] / best["plain"]["tokens_per_second"]
        most = (1 + accepted) / (1 + cost["c"])
        say("speed-up", temperature=temperature, accepted=accepted, gain=gain, most=most, of_most=gain / most)
        pairs = zip(best["drafts"]["requests"], best["plain"]["requests"], strict=True)
        same = [float(np.mean(np.array(a.sampled) == np.array(b.sampled))) for a, b in pairs]
        if not temperature:
            say("greedy", same_tokens=float(np.mean(same)), same_answers=float(np.mean([s == 1.0 for s in same])))
    if DEVICE == "cuda":
        say("replay", **{f"{side}_ms": replay_ms(engine) for side, engine in engines.items()})
        if profile:
            for side, engine in engines.items():
                say("profile", side=side, kernels=kernels(engine, prompts[0]))


def kernels(engine: Engine, prompt: Sequence[int], steps: int = 40) -> list[list[Any]]:
    """Microseconds a step by kernel, the longest first, with launches a step; then the host's part."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiling

    request = engine.submit(prompt, Sampling(max_tokens=4 * steps, seed=1))
    while len(request.logprobs) < 4:
        engine.step()
    torch.cuda.synchronize()
    with profiling(activities=[ProfilerActivity.CUDA]) as seen:
        began = time.perf_counter()
        for _ in range(steps):
            engine.step()
        host = time.perf_counter() - began
        torch.cuda.synchronize()
    found = sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in found) / steps
    while engine.busy:
        engine.step()
    lines = [[e.key[:48], round(e.self_device_time_total / steps, 1), round(e.count / steps, 1)] for e in found[:24]]
    return [*lines, ["sum", round(total, 1)], ["wall", round(1e6 * host / steps, 1)]]


def batch(work: Path, small: bool = False, name: str = "drafting") -> None:
    """Many requests of mixed lengths at once: what drafts give there."""
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    decoder = load_model(work / name, DEVICE, dtype)
    held = Stream(np.load(work / "held_out.npy"), 5)
    count = 4 if small else 32
    prompts = [ids[: 64 + 16 * (i % 8)].astype(int).tolist() for i, ids in enumerate(held.take(count * SEQUENCE))]
    base = EngineSettings(max_running=count, cache_tokens=1024 * count, max_length=1024, prefill_tokens=4096)
    for drafts in (0, 1):
        engine = drafting(decoder, base) if drafts else plain(decoder, base)
        record_all(engine)
        for again in (False, True):
            asked = [
                engine.submit(p, Sampling(max_tokens=32 if small else 192 + 4 * (i % 8), seed=i))
                for i, p in enumerate(prompts)
            ]
            began = time.perf_counter()
            while engine.busy:
                engine.step()
            spent = time.perf_counter() - began
            if again:
                sampled = sum(len(request.logprobs) for request in asked)
                say(
                    "many",
                    drafts=drafts,
                    requests=count,
                    tokens_per_second=sampled / spent,
                    **drift(decoder, asked, 1.0),
                )


def shape_only(work: Path, profile: bool) -> None:
    """The speed of the full shape with weights that nobody trained."""
    (work / "drafting").mkdir(parents=True, exist_ok=True)
    save_model(work / "drafting", attach(new_model(VOCAB, False), 1, 0))
    np.save(work / "held_out.npy", np.random.default_rng(0).integers(300, VOCAB, 20 * SEQUENCE).astype(np.uint16))
    speed(work, profile=profile)
    batch(work)


def smoke() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for name, step in (
            ("text", lambda: text(work, 2.0, 1024)),
            ("model", lambda: model(work, 8.0, small=True, compile_blocks=False)),
            ("head", lambda: head(work, 6.0, 3.0, small=True, compile_blocks=False)),
            ("speed", lambda: speed(work, small=True)),
            ("batch", lambda: batch(work, small=True)),
        ):
            try:
                step()
            except Exception:
                say("failed", step=name, error=traceback.format_exc()[-1200:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("text", "model", "head", "speed", "batch", "shape", "smoke"))
    parser.add_argument("--work", type=Path, default=Path("mtp-benchmark"))
    parser.add_argument("--megabytes", type=float, default=120.0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--joint", type=float, default=15.0)
    parser.add_argument("--experts", action="store_true", help="of the model: 16 experts, 4 for each token; no heads")
    parser.add_argument("--profile", action="store_true", help="where a step's time goes")
    parser.add_argument("--model", default="drafting", help="frozen: the head before anything was trained jointly")
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if options.step == "text":
        text(options.work, options.megabytes)
    elif options.step == "model":
        model(options.work, options.seconds or 110.0, experts=options.experts)
    elif options.step == "head":
        head(options.work, options.seconds or 40.0, options.joint)
    elif options.step == "speed":
        speed(options.work, name=options.model, profile=options.profile)
    elif options.step == "shape":
        shape_only(options.work, options.profile)
    elif options.step == "batch":
        batch(options.work, name=options.model)
    else:
        smoke()


if __name__ == "__main__":
    main()

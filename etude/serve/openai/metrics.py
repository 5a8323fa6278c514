"""What the server counts, in the text format of Prometheus.

Requests and times are counted here; the engine's own figures are read when somebody looks. Knows no routes: labels are
what the caller gives, and must be few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)

# name in the engine's stats: kind and meaning
_ENGINE = {
    "running": ("gauge", "Requests that have a place in the batch."),
    "waiting": ("gauge", "Requests queued for one."),
    "submitted": ("counter", "Requests given to the engine."),
    "finished": ("counter", "Requests that ended by themselves."),
    "aborted": ("counter", "Requests that were ended."),
    "failed": ("counter", "Requests whose logits were not finite."),
    "steps": ("counter", "Steps of the engine."),
    "computed_tokens": ("counter", "Tokens that went through the model, prompts and answers."),
    "sampled_tokens": ("counter", "Tokens sampled."),
    "cached_tokens": ("counter", "Prompt tokens found in the prefix cache."),
    "preemptions": ("counter", "Requests that lost their place for a while."),
    "blocks": ("gauge", "Cache blocks."),
    "blocks_held": ("gauge", "Cache blocks in use by requests."),
    "cache_bytes": ("gauge", "Memory of the key-value cache."),
}


@dataclass
class Histogram:
    name: str
    about: str
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds

    def lines(self) -> list[str]:
        out, below = _head(self.name, "histogram", self.about), 0
        for limit, count in zip((*SECONDS, "+Inf"), self.counts, strict=True):
            below += count
            out.append(f'{self.name}_bucket{{le="{limit}"}} {below}')
        return [*out, f"{self.name}_sum {self.total!r}", f"{self.name}_count {below}"]


@dataclass
class Metrics:
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)  # by route and status
    dropped: Counter[str] = field(default_factory=Counter)  # requests whose client left or did not read, by which
    prompt_tokens: int = 0
    answer_tokens: int = 0
    streams: int = 0  # open now
    first_token: Histogram = field(
        default_factory=lambda: Histogram("etude_first_token_seconds", "From a request to its first token.")
    )
    duration: Histogram = field(
        default_factory=lambda: Histogram("etude_request_seconds", "From a request to the end of its answer.")
    )

    def text(self, engine: Mapping[str, object] | None) -> str:
        """All of it; without the engine's part if that did not answer."""
        lines = _head("etude_requests_total", "counter", "Requests answered, by route and status.")
        for (route, status), count in sorted(self.answers.items()):
            lines.append(f'etude_requests_total{{route="{route}",status="{status}"}} {count}')
        lines += _head("etude_dropped_total", "counter", "Requests ended because nobody read the answer.")
        lines += [f'etude_dropped_total{{cause="{cause}"}} {count}' for cause, count in sorted(self.dropped.items())]
        lines += _one("etude_prompt_tokens_total", "counter", "Tokens of answered prompts.", self.prompt_tokens)
        lines += _one("etude_answer_tokens_total", "counter", "Tokens of answers.", self.answer_tokens)
        lines += _one("etude_streams", "gauge", "Streams that are open.", self.streams)
        lines += self.first_token.lines() + self.duration.lines()
        lines += _one("etude_engine_up", "gauge", "Whether the engine answered.", int(engine is not None))
        for name, (kind, about) in _ENGINE.items():
            if engine is not None and name in engine:
                full = f"etude_engine_{name}" + ("_total" if kind == "counter" else "")
                lines += _one(full, kind, about, engine[name])
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _one(name: str, kind: str, about: str, value: object) -> list[str]:
    return [*_head(name, kind, about), f"{name} {value}"]

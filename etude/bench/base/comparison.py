"""Several models side by side: what each evaluation says of each, as rows of text, as Markdown and as a page.

Reads the plain data that `suite.py` gives, so saved results can be compared as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from etude.bench.report.html import join, tag
from etude.bench.report.markdown import table
from etude.bench.report.page import document
from etude.core.errors import EtudeError

Found = Mapping[str, Any]
HEADERS = (
    *("model", "parameters", "fresh knowledge", "tracking, characters", "code, bits per byte", "needle, exact"),
    *("needle, probability", "serving"),
)
NOTE = (
    "Fresh knowledge: share of questions whose true answer is the likeliest, and what chance gives. Tracking: mean "
    "distance in characters from the true file, and of an answer that ignores every diff. Code: bits per byte of the "
    "same text. Needle: right answers, and the probability of the true one. Serving: bytes of weights and of the cache "
    "of one context at each length; tokens a second of all requests together, where it was measured."
)


def rows(models: Sequence[Found]) -> list[tuple[str, ...]]:
    """One line for each model; a dash where an evaluation was left out."""
    return [(_name(found), *(write(found) for write in _COLUMNS)) for found in models]


def texts_differ(models: Sequence[Found]) -> str:
    """A sentence where figures were taken of different texts, which makes them incomparable; else nothing."""
    prints = {found["codebase"]["fingerprint"] for found in models if "codebase" in found}
    return "these figures are of different code, so bits per byte cannot be compared" if len(prints) > 1 else ""


def markdown(models: Sequence[Found]) -> str:
    said = [note for note in (NOTE, texts_differ(models)) if note]
    return "\n\n".join(["# Base models side by side", table(HEADERS, rows(models)), *said]) + "\n"


def page(models: Sequence[Found]) -> str:
    def line(cells: Sequence[str], kind: str = "td") -> str:
        return tag("tr", [tag(kind, cell) for cell in cells])

    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = join(
        tag("header", tag("p", "Etude", class_="kicker"), tag("h1", "Base models side by side")),
        tag("p", warning, class_="warning") if (warning := texts_differ(models)) else None,
        tag(
            "section",
            tag("table", tag("thead", line(HEADERS, "th")), tag("tbody", [line(row) for row in rows(models)])),
            tag("p", NOTE),
        ),
        tag("footer", tag("p", f"Written by etude on {written}.")),
    )
    return document("Base models: Etude", body)


def as_page(path: Path, models: Sequence[Found]) -> str:
    """What a file of this name should hold."""
    if path.suffix not in (".html", ".md"):
        raise EtudeError(f"--page writes .html or .md, not {path.name}")
    return page(models) if path.suffix == ".html" else markdown(models)


def _name(found: Found) -> str:
    path = Path(found["model"])
    return "/".join(path.parts[-2:]) if len(path.parts) > 1 else str(path)


def _parameters(found: Found) -> str:
    serving = found.get("serving")
    if not serving:
        return "-"
    whole, active = serving["parameters"] / 1e6, serving["active"] / 1e6
    return f"{whole:,.3g}M" if whole == active else f"{whole:,.3g}M, {active:,.3g}M a token"


def _fresh(found: Found) -> str:
    fresh = found.get("fresh")
    return f"{fresh['accuracy']:.1%} (chance {fresh['chance']:.1%})" if fresh else "-"


def _tracking(found: Found) -> str:
    tracking = found.get("tracking")
    return f"{tracking['distance']:.1f} ({tracking['untouched']:.1f})" if tracking else "-"


def _code(found: Found) -> str:
    return f"{found['codebase']['bits_per_byte']:.4f}" if "codebase" in found else "-"


def _needle_exact(found: Found) -> str:
    return f"{found['needle']['exact']:.1%}" if "needle" in found else "-"


def _needle_probability(found: Found) -> str:
    needle = found.get("needle")
    return f"{needle['probability']:.3f} (chance {1 / needle['candidates']:.3f})" if needle else "-"


def _serving(found: Found) -> str:
    return "; ".join(serving_words(each) for each in found["serving"]["lengths"]) if "serving" in found else "-"


def serving_words(each: Mapping[str, Any]) -> str:
    speed = f", {each['decode']:,.0f} tokens/s" if each["decode"] else ""
    return f"{each['length']:,}: {each['memory'] / 1e9:,.3g} GB{speed}"


_COLUMNS = (_parameters, _fresh, _tracking, _code, _needle_exact, _needle_probability, _serving)

"""How a policy behaves, in a few numbers: what moves over a run when a policy learns something that nobody wanted.

An edit rate that falls means questions or excuses in the place of work; a mix of tools that moves, comments that grow
and words for the judge are worth a look even where every single rollout looks clean.
"""

from __future__ import annotations

import io
import tokenize
from collections import Counter
from collections.abc import Iterable, Sequence

from etude.audit.base import Ruling
from etude.audit.blind_view import BlindView
from etude.audit.evidence import Evidence


def behaviour(views: Iterable[BlindView], rulings: Sequence[Ruling] = ()) -> dict[str, float]:
    """Numbers over some rollouts: shares, and means for a rollout. Tools are shares of all calls, as `tool.NAME`."""
    rollouts = edited = tested = turns = comment = thought = added = 0
    tools: Counter[str] = Counter()
    for view in views:
        rollouts += 1
        evidence = Evidence(view)
        turns += len(view.turns)
        thought += sum(len(turn.thinking) for turn in view.turns)
        tools.update(call.name for turn in view.turns for call in turn.calls)
        edited += bool(view.changed)
        tested += evidence.ran_tests
        for source in evidence.python_files:
            comment += max(0, _comments(source.after) - _comments(source.before))
            added += len(source.added)
    count = max(1, rollouts)
    metrics = {
        "attempts": float(rollouts),
        "edit_rate": edited / count,
        "test_rate": tested / count,
        "turns": turns / count,
        "added_lines": added / count,
        "comment_chars": comment / count,
        "thinking_chars": thought / count,
    }
    calls = max(1, tools.total())
    metrics |= {f"tool.{name}": number / calls for name, number in sorted(tools.items())}
    if rulings:
        verdicts = Counter(ruling.verdict for ruling in rulings)
        metrics |= {f"verdict.{name.replace(' ', '_')}": n / len(rulings) for name, n in sorted(verdicts.items())}
    return metrics


def _comments(text: str) -> int:
    """Characters in comments; of code that is not whole, as far as it can be read."""
    total = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            total += len(token.string) if token.type == tokenize.COMMENT else 0
    except (tokenize.TokenError, SyntaxError, ValueError):
        pass
    return total

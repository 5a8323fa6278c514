"""How many tokens a small tool-using conversation takes, and how well code compresses, by vocabulary size.

    python benchmarks/token_counts.py [--vocab 550 1024 2048] [--json]

The tokenizer is trained on four million bytes of this Python's standard library; compression is measured on a tenth
of its files kept apart. `as JSON` is the same conversation in the usual chat markup (role headers, calls as escaped
JSON), its markup counted at one token each, as special tokens: what the message format saves.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import sysconfig
from pathlib import Path

from etude.core.policy import Assistant, Call, Message, System, ToolResult, User
from etude.tokens.render import render
from etude.tokens.tokenizer import Tokenizer

SOURCE = '''"""A small shopping cart."""


def total(items):
    """Sum of price times quantity."""
    result = 0
    for name, price, count in items:
        result += price
    return result
'''
CONVERSATION: tuple[Message, ...] = (
    System("You are a coding agent. Use the tools."),
    User("The function `total` in cart.py ignores the quantity. Fix it so that the tests pass."),
    Assistant(calls=(Call("read", {"path": "cart.py"}),)),
    ToolResult("read", SOURCE),
    Assistant(
        calls=(Call("edit", {"path": "cart.py", "old": "result += price", "new": "result += price * count"}),),
    ),
    ToolResult("edit", "ok"),
    Assistant(calls=(Call("run", {"command": "python -m unittest"}),)),
    ToolResult("run", "Ran 3 tests in 0.001s\n\nOK"),
    Assistant(final="total multiplies price by count.", calls=(Call("finish"),)),
)


def as_json(messages: tuple[Message, ...], tokenizer: Tokenizer) -> int:
    """Tokens in chat markup: start, role, line break, text, end and line break for each message."""
    total = 0
    for message in messages:
        role = "tool" if isinstance(message, ToolResult) else type(message).__name__.lower()
        total += 3 + len(tokenizer.encode(role)) + len(tokenizer.encode("\n"))
        if isinstance(message, Assistant):
            total += len(tokenizer.encode(message.final))
            for call in message.calls:
                body = json.dumps({"name": call.name, "arguments": dict(call.arguments)})
                total += 2 + len(tokenizer.encode(f"\n{body}\n"))
        else:
            total += len(tokenizer.encode(message.text))
    return total


def standard_library() -> tuple[list[str], list[str]]:
    """Files to train on, four million bytes of them, and files kept apart."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    random.Random(0).shuffle(paths)
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths if path.stat().st_size < 60_000]
    apart = len(texts) // 10
    chosen, size = [], 0
    for text in texts[apart:]:
        chosen.append(text)
        size += len(text)
        if size >= 4_000_000:
            break
    return chosen, texts[:apart]


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--vocab", type=int, nargs="+", default=[550, 1024, 2048])
    arguments.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = arguments.parse_args()
    train, apart = standard_library()
    rows = []
    for size in options.vocab:
        tokenizer = Tokenizer.train(train, size)
        rendered = render(CONVERSATION, tokenizer, open_turn=False)
        code_tokens = sum(map(len, tokenizer.encode_batch(apart)))
        rows.append(
            {
                "vocab": tokenizer.vocab_size,
                "conversation": len(rendered.ids),
                "of it control": sum(map(tokenizer.is_control, rendered.ids)),
                "of it sampled": sum(rendered.per_token().own),
                "as JSON": as_json(CONVERSATION, tokenizer),
                "bytes per token of code": round(sum(len(text.encode()) for text in apart) / code_tokens, 2),
            }
        )
    if options.json:
        print(json.dumps({"rows": rows}))
        return 0
    print(" | ".join(rows[0]))
    for row in rows:
        print(" | ".join(f"{value:>{len(name)}}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

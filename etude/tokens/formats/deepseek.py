"""Calls between tokens of their own: DeepSeek. V3 and R1 put the arguments into a fence, V3.1 does not.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read<｜tool▁sep｜>{"path": "a.py"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
<｜tool▁call▁begin｜>function<｜tool▁sep｜>read
```json
{"path": "a.py"}
```<｜tool▁call▁end｜>
"""

from __future__ import annotations

from etude.tokens.formats.base import Format, Head, Section, read_section

MARKS = Section(
    begin="<｜tool▁calls▁begin｜>",
    end="<｜tool▁calls▁end｜>",
    call="<｜tool▁call▁begin｜>",
    arguments="<｜tool▁sep｜>",
    call_end="<｜tool▁call▁end｜>",
)
FENCE = "```"


def _head(before: str, behind: str) -> Head:
    # V3 and R1 have the word "function" where V3.1 has the name; a tool may be called that, so the fence decides.
    if before.strip() == "function" and FENCE in behind:
        return Head(behind.partition("\n")[0].strip(), lead=behind[: behind.index(FENCE)].lstrip() + FENCE + "json")
    return Head(before.strip())


DEEPSEEK = Format(
    name="deepseek",
    marks=MARKS,
    opener=MARKS.begin,
    call=MARKS.call,
    read=lambda pieces: read_section(pieces, MARKS, _head, tail=("", FENCE)),
    detect=lambda template: MARKS.begin in template,
)

"""Calls as tags all the way: Qwen3-Coder. Arguments are text as it is, neither quoted nor escaped.

<tool_call>
<function=read>
<parameter=path>
a.py
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from etude.core.policy import Call
from etude.tokens.formats.base import Calls, Format
from etude.tokens.vocabulary import MarkedText

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION = re.compile(r"\s*<function=([^>\n]*)>\n?(.*?)</function>\s*", re.DOTALL)
# One line break behind the opening tag and one before the closing one are the template's; any further ones are the
# value's own, as a file that ends with an empty line needs them.
PARAMETER = re.compile(r"<parameter=([^>\n]*)>\n?(.*?)\n?</parameter>\n?", re.DOTALL)


def _read(pieces: Sequence[MarkedText]) -> Calls:
    found = Calls()
    for place in range(0, len(pieces), 2):
        if pieces[place].mark != OPEN:
            found.fault = "WrongOrder", f"{CLOSE} stands outside a call"
        elif place + 1 == len(pieces) or pieces[place + 1].mark != CLOSE:
            found.fault = "CutOff", f"a call has no {CLOSE}"
        elif pieces[place + 1].text.strip():
            found.fault = "WrongOrder", "words stand after a call: they come before all calls"
        else:
            call = _call(pieces[place].text)
            if isinstance(call, Call):
                found.calls.append(call)
                continue
            found.fault = "WrongOrder", call
        return found
    return found


def _call(text: str) -> Call | str:
    function = FUNCTION.fullmatch(text)
    if function is None:
        return "a call is <function=NAME>, its <parameter=NAME>VALUE</parameter>, and </function>"
    arguments: dict[str, str] = {}
    at, body = 0, function[2]
    for parameter in PARAMETER.finditer(body):
        if body[at : parameter.start()].strip():
            return "text stands between the parameters of a call"
        if parameter[1] in arguments:
            return "a call gives a parameter twice"
        arguments[parameter[1]] = parameter[2]
        at = parameter.end()
    if body[at:].strip():
        return "a parameter of a call has no </parameter>"
    return Call(function[1], arguments)


QWEN_CODER = Format(
    name="qwen_coder",
    marks=(OPEN, CLOSE),
    opener=OPEN,
    call=OPEN,
    read=_read,
    detect=lambda template: OPEN in template and "<function=" in template,
    typed=False,
)

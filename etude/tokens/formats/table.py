"""The tool-call formats, in the order in which a template is asked whether it is one of them."""

from __future__ import annotations

from etude.tokens.formats.base import Calls, Format
from etude.tokens.formats.deepseek import DEEPSEEK
from etude.tokens.formats.hermes import HERMES
from etude.tokens.formats.kimi import KIMI
from etude.tokens.formats.qwen_coder import QWEN_CODER

# A template that writes no calls: nothing in a turn is read as one.
NONE = Format("none", (), "", "", lambda pieces: Calls(), lambda template: True)

FORMATS: tuple[Format, ...] = (KIMI, DEEPSEEK, QWEN_CODER, HERMES, NONE)


def detect_format(template: str) -> Format:
    """The format in which a chat template writes tool calls."""
    return next(one for one in FORMATS if one.detect(template))

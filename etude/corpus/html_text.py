"""Web pages to text: what a reader would see, with code kept line by line."""

from __future__ import annotations

import re
from html.parser import HTMLParser

SILENT = frozenset({"script", "style", "template", "noscript", "svg", "head", "nav", "footer", "aside", "form"})
BLOCKS = frozenset(
    {"p", "div", "section", "article", "main", "li", "ul", "ol", "tr", "table", "br", "pre", "blockquote", "dt", "dd"}
)
HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._silent = self._kept = 0  # how deep inside elements that are not read, or that keep their white space

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in SILENT:
            self._silent += 1
        elif tag in HEADINGS:
            self.pieces.append(f"\n\n{HEADINGS[tag]} ")
        elif tag == "pre":
            self._kept += 1
            self.pieces.append("\n```\n")
        elif tag == "li":
            self.pieces.append("\n- ")
        elif tag in BLOCKS:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in SILENT:
            self._silent = max(0, self._silent - 1)
        elif tag == "pre":
            self._kept = max(0, self._kept - 1)
            self.pieces.append("\n```\n")
        elif tag in HEADINGS or tag == "p":
            self.pieces.append("\n\n")
        elif tag in BLOCKS:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.pieces.append(data if self._kept else re.sub(r"\s+", " ", data))


def html_to_text(page: str) -> str:
    """The text of a page: headings as Markdown's, code between fences, menus and scripts left out."""
    parser = _Text()
    parser.feed(page)
    parser.close()
    lines = "".join(parser.pieces).split("\n")
    text, code = [], False
    for line in lines:
        code ^= line == "```"
        text.append(line.rstrip() if code else " ".join(line.split()))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(text)).strip() + "\n"

"""Planted hacks: an open suite to measure a monitor with. Scripts that cheat, each beside an honest one like it.

In reading order: `scene` (a kata as scripts see it, and what a family is), `leftovers` (answers left lying around),
`judges` (tests and their settings), `machinery` (everything around them), `code` (code that games the judge), `words`
(what is told to whoever judges), `broken` (tasks that cannot be solved), `git` (a small history to plant), `suite` (all
of them, those frozen, and how they are played). Knows no monitor.
"""

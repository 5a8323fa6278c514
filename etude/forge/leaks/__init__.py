"""Search of everything that an agent can see for what its task has deleted.

In reading order: `deleted` (what is searched for), `shingles` (text as numbers), `bytecode`, `packed` (git packs,
databases), `unpack` (everything that a file holds), `wanted` (what really went), `index` (a tree, read once), `kept`
(what is remembered), `view` (layers over each other), `judge` (copy or relative), `audit` (the search itself);
`planted` (hiding places to try it on).
"""

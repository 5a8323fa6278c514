"""Search of everything that an agent can see for what its task has deleted.

In reading order: `deleted_code` (what is searched for), `shingles` (text as numbers), `bytecode`, `git_and_sqlite`,
`unpack` (everything that a file holds), `search_terms` (what really went), `tree_index` (a tree, read once),
`index_cache` (what is remembered), `layer_view` (layers over each other), `is_copy` (copy or relative), `audit` (the
search itself), `scrub` (what is taken out of a workspace), `minimal_host` (what of the host sandboxes are shown).
"""

"""How a repository becomes an environment: two stages, an agent in each, and a verdict that no agent gives.

In reading order: `index` (where packages come from), `fetch` (a package's sources), `carry` (files out of a sandbox),
`git` (a checkout's files and history); `texts`, `requirements`, `recipes` and `project` (what a repository says about
itself), `proposal` (the ten commands), `steps` (policies that are ordinary code), `explore` (stage 1 by rules), `needs`
(what an error asks for), `stand_ins` (for services), `options` (pytest's), `settle` (stage 2 by rules); `result`,
`finish` and `inside` (the layer and its lock), `verify`, `install` (all of it), `building` (its twin that can
build the repository), `command`.
"""

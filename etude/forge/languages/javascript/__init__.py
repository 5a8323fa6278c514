"""Tasks from repositories of JavaScript: the same road as for Python, where it goes another way.

Reading order: `npm` (where packages come from), `project` (what a repository says about itself), `install`, `source`
(a file as something to cut pieces out of), `world` (what is known about a repository), `delete` and `bugs`.
"""

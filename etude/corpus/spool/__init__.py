"""Documents on disk between the steps of a build, a chunk at a time, so that memory does not grow with the corpus.

In reading order: `files` (what a chunk is on disk), `reading` (sources -> chunks, continued after a kill), `screening`
(what is found out about the documents of one chunk), `workers` (the processes that do it).
"""

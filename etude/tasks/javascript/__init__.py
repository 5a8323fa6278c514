"""Tasks in JavaScript: what the grader has to read and change in sources that are no Python.

Reading order: `parsing` (the parser and its tree), `functions` (what a file defines), `reading` (the tests of a file),
`twists` (tests changed so that they must fail), `plan` (one grading run), `stubs` (answers that only look like one).
"""

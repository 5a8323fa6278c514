"""JavaScript sources, read with a parser and never run.

In reading order: `parsing` (the parser and its tree), `functions` (what a file defines), `test_source` (the tests of a
file) and `stubs` (functions that always return the same).
"""

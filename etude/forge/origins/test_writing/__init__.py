"""Tests to write for functions that lost theirs. `propose`, `instruct`, `origin`."""

"""Commit: what a commit did to the code is undone. `propose`, `instruct`, `origin`."""

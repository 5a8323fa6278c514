"""Refactorings of a real repository: something gets another name or place, and nothing stays behind under the old one.

In reading order: `synonyms` (another word for a word), `spelling` (a name in text: code, comments, documents), `uses`
(what else a name means in the repository), `rename`, `parameter` and `move` (the three kinds, each with the whole
edit), `gone` (tests that look for what was left behind), `proposals` (all of them in turns), `telling` (how they are
asked for), `work` (the way of one of them to a task). Cheats of this origin: `forge/cheats/both.py`.
"""

"""Refactorings: something gets another name or place, and nothing stays behind under the old one.

In reading order: `synonyms` (another word for a word), `replace_name` (a name in code, comments, documents),
`name_uses` (what else a name means in the repository), `candidate`, `rename_symbol`, `rename_parameter` and
`move_module` (the three kinds, each with the whole edit), `leftover_tests` (tests that look for what was left behind),
`propose` (all kinds in turns), `prove`, `instruct`, `origin`.
"""

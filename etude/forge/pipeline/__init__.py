"""Tasks from a real repository.

In reading order: `base` (what is known about a repository of any language: its symbols, its tests, which test reaches
what), `source` (Python text, and edits that leave the rest byte for byte), `world` and `python_tests` (the same of a
Python repository), `baseline` (where that comes from, once for each repository), `choose` (functions that belong
together), `delete`, `references`, `mistakes`, `bugs`, `commits` (three ways to break something), `candidate` (what they
propose), `trial` (what a proposal breaks), `hide` (which tests the agent sees), `wording` (what it is told),
`difficulty`, `manners` and `write` (the task as a directory), `one` (the whole way of one candidate). Then what is no
edit of the code: `harmless`, `reviews` and `questions` (things to find out), `asking` (how they are put) and `ask`
(their way), `plans` and `planning` (the functions that a plan names); `untested` (functions that tests are wanted for),
`proving` and `probe` likewise; `documented`, `describing` and `explain` (docstrings that are wanted) too; refactorings
have a folder of their own (`forge/refactor`). Then packaging: `entries` (the configuration), `packaging` (what is
broken in it), `built` (what a distribution is like), `demands`, `complaints` (tests and words), `bluffing` and
`release` (its way). Last `journal` (what was tried), `making` (all of them in order), `command` (what the command line
calls). JavaScript: `forge/javascript`.
"""

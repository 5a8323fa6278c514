"""Broken packaging: entries of the configuration are gone, or lead nowhere.

In reading order: `propose`, `build_test` (how a distribution is built and read; the first half of every test),
`expectations` (differences as tests and sentences), `build_environment` and `distribution` (the repository
built), `prove`, `instruct`,
`origin`. The configuration as entries, and answers that must not be accepted, are in `etude/tasks/kinds/packaging/`.
"""

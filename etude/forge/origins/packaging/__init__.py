"""Broken packaging: entries of the configuration are gone, or lead nowhere.

In reading order: `config_entries` (the configuration as entries), `propose`, `build_test` (how a distribution is built
and read; the first half of every test), `expectations` (differences as tests and sentences), `distribution` (the
repository built), `prove`, `instruct`, `attacks` (answers that must not be accepted), `origin`.
"""

"""Attacks that only tests and `make redteam` run; not in the wheel.

In reading order: `result`, `monitor_suite/`, `leaks/`, `grader/`, `__main__` (all suites, one after the other).
"""

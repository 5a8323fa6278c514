"""What runs inside the grading sandbox. The standard library only, so that a small warm process can fork into it.

In reading order: `runner` (the one process that reports, and never loads the agent's code), `judge` (a child of it
that runs tests), `memory` (tests that are never on disk), `unittests` and `pytests` (the two suites), and for tests
that speak to the agent's code in another process: `values` (what may cross), `remote` (the tests' end), `worker` (the
agent's end). For tests of a real repository: `repository` (its own suite in its environment), `suite` (a run of it
that is no grade), `tracing` (which functions each test reaches) and `services` (what has to listen meanwhile). For
tests of JavaScript: `node` (test files, each in a process of its own), `report.cjs` (what is loaded into that) and
`node_suite` (a run that is no grade).
"""

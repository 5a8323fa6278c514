"""What runs inside the sandboxes. The standard library only, so that a small warm process can fork into it.

In reading order: `grade_process` (the one process that reports, and never loads the agent's code), `test_process` (a
child of it that runs tests), `child_output`, `tests_in_memory` (tests that are never on disk), `unittest_grading` and
`pytest_grading`, and for tests whose tested code is in another process: `wire_values` (what may cross),
`remote_objects` (the tests' end) and `code_process` (the agent's end). For tests of a real repository:
`repository_suite` (its own suite in its environment), `recorder` (values that tests without answers record),
`pytest_suite_run` (a run of it that is no grade), `function_tracing` (which functions each test reaches),
`detect_source_reading` (code that examples may not read), `code_copies` (copies that they may not ask), `watcher`
(what tested code does while tests run, for the monitor) and `start_services`. For tests of JavaScript: `node_tests`
(test files, each in a process of its own), `report.cjs` (what is loaded into that) and `node_suite_run` (a run that
is no grade). `interpreter_warmup` is run before any of them is forked.
"""

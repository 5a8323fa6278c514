"""How submitted files are graded by tests: plan, run, verdict.

In reading order: `submission` (what of an agent's work reaches the grader) with `packaging_config`; `test_plan` (what
one grading run consists of) with `test_source`, `inherited_tests`, `test_mutations` and `canaries`, for JavaScript
`javascript_plan` and `javascript_test_mutations`; `withheld/` (tests without their answers); `grader` (the run in a
fresh sandbox), `verdict` (what came of it), `watched_run` (tests once more, with what the code does recorded) and
`equivalent_rewrites` (the same code in another text).
"""

"""The rules, by what they watch.

`leaked_solution` (the answer taken from somewhere), `test_tampering` (tests and their settings), `test_twins` (written
tests that ask a copy of the code), `environment_tampering` (everything around them), `special_cased_code` (the changed
sources), `judge_injection` (what is said to a grader or a judge), `broken_task` (the task itself).
"""

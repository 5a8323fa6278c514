"""What origins have in common.

In reading order: `context` (what a maker of tasks works with), `baseline` (which tests are always green, and what they
reach), `candidate`, `difficulty`, `proof` (what running a candidate showed), `round_robin`, `choose_functions`
(functions that belong together), `killed_mutants` (mistakes that tests notice), `trial` (what a candidate breaks),
`hide_tests` (which tests the agent sees), `instructions` and `code_change_instructions` (what it is asked), `write`
(the task directory), `code_change` (tasks that bring a behaviour back), `make_fair` (whether what hidden tests ask
for can be known), `add_inputs` (hidden tests with other inputs), `issue_tracker` (a report as an issue), `verify`
(scrub, leaks, gates), `git_history`.
"""

"""Ways to look right without being right, each as the files it leaves in a workspace or the turns it takes.

A grader is good when it rejects all of them. They follow the measured families of reward hacking: results forged from
inside the tested code, the test framework bent, tests edited or dropped, imports hijacked, answers read from the
tests, machinery outside the workspace tampered with. They know no particular grader.

In reading order: `made` (what they are made of), `inside`, `around`, `outside`, `table` (all by name, and as scripts).
"""

"""The one exception that a person is meant to read.

Anything a user can cause (a wrong key, a missing folder, a broken checkpoint, a full disk) is raised as
`EtudeError` with one sentence that says what was wrong, where, and what to do. The command line prints that
sentence and exits with 2; every other exception is a bug of ours and keeps its traceback.
"""


class EtudeError(Exception):
    """What was wrong, where, and what to do, in one sentence."""

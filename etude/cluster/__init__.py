"""Where things run: programs beside this one, started, watched, and started again when they die.

One module: `local` (supervisors of processes on this machine).
"""

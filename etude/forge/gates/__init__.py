"""What a made task has to pass before anybody may use it.

In reading order: `attacks/` (submissions that only look right), `near_duplicates` (tasks that are nearly the same),
`withheld_answers` (tests lose their answers), `gates` (all checks, cheap ones first).
"""

"""What a person sees of reinforcement learning while it runs.

In reading order: `snapshot` (how things stand between two steps), `frame` (rows and a snapshot to lines of text),
`dashboard` (draws the frame on a terminal, or shows the bar elsewhere).
"""

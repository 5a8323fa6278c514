"""What a layout of learner ranks takes before anybody starts it: memory, traffic, time; and which layout is best.

In reading order: `machines` (what devices do), `shapes` (models to plan for), `workload` (one step), `activations` and
`memory` (of one rank), `traffic` (bytes on each wire), `step_time`, `search` (all layouts, and why most fall),
`request` (what a user asks), `page` (the answer as data and as Markdown); then `simulator/`, the whole loop over a
simulated clock. Nothing here needs torch.
"""

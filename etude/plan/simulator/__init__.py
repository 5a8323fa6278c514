"""The training loop over a simulated clock: what so many sandboxes, engines and GPUs give before anybody rents them.

Admission, the order of rollouts, retries, the placement on engines and the count of staleness are those of `etude/rl`
and `etude/policies`, imported. What they wait for is simulated with service times that a finished run recorded.

In reading order: `clock` (an event loop whose time is simulated), `processors` (cores that programs share),
`service_times` (what each thing takes), `engine` (a batch that grows slower with its size), `environment` (rollouts,
stragglers and failures), `simulate` (the loop, and what came out), `measure` (service times of a finished run),
`forecast` (a table of several sizes), `page` (as Markdown with a figure). Nothing here needs torch.
"""

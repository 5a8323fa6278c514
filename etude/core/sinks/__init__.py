"""Where metrics go beside metrics.jsonl: other programs that draw curves. How to add one: docs/extend/add-a-sink.md.

In reading order: `base` (what a sink is), `table` (by the names that recipes use), `feed` (a thread for each, so that
none can hold up or stop a run), `weights_and_biases`, `trackio_project`, `tensorboard_events`.
"""

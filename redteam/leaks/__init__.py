"""Leaks: `hiding_places` (where copies are put), `probe_program` and `leak_probes` (who looks for them), `run`."""

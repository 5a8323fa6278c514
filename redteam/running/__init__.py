"""Hacks of a kata that look like ordinary code and show only when they run: `hacks` (13 of them), `run`."""

"""Deletion: functions lose their bodies or go whole, and are to be written again. `propose`, `origin`."""

"""Low precision."""

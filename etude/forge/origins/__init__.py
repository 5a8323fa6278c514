"""Origins."""

"""Javascript."""

"""Project."""

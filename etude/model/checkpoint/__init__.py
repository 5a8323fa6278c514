"""Checkpoint."""

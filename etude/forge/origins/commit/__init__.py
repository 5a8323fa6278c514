"""Commit."""

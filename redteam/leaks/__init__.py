"""Leaks."""

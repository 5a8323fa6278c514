"""Docstrings."""

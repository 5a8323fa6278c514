"""Deletion."""

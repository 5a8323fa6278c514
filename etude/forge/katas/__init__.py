"""Katas."""

"""Redteam."""

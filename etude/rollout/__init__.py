"""Rollout."""

"""Test writing."""

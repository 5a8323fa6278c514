"""Etude trains coding agents in the open: pretraining, fine-tuning, reinforcement learning, serving."""

__version__ = "0.1.0"

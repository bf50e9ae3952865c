"""Checkpoints that are whole or refused."""

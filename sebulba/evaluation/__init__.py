"""Measuring and using a trained policy: evaluation, video, and the policy as a function."""

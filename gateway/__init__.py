"""Larder: an S3-compatible object-cache gateway for deep-learning clusters."""

__version__ = "0.2.0"

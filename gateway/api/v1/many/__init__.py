"""Batches of keys: ``POST /-/v1/batch``."""

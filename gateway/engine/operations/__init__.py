"""Operators' requests: explain, purge, verify, warm up, watch."""

"""Endpoints of operations: purges, warm-ups, verifications, explanations."""

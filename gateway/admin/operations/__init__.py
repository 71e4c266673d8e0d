"""Endpoints of work that operators start: purges, warm-ups, verifications, explanations."""

"""Shared by reads of objects and items: services, source streams, homes, and the plan in force."""

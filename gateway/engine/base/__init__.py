"""Shared by reads of objects and of items: services, streams from a source, homes, and the plan in force."""

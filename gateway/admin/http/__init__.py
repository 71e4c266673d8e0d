"""Shared parts of the admin endpoints: tokens, documents, requests, and the endpoints of a kind of record."""

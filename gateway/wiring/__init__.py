"""Parts of the composition root, for gateway/app.py and the command that starts it."""

ENDPOINTS = "gateway.wiring.endpoints"
"""The module of all endpoints but those of data, peers and operators."""

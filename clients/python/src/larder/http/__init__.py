"""Requests: signed HTTP over TCP and unix sockets, gateways and their fleet, stores."""

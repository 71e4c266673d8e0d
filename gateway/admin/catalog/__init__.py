"""The catalog: what operators have decided while gateways run, kept in a database that all of them read."""

"""The catalog: the run-time configuration, in a database that all gateways read."""

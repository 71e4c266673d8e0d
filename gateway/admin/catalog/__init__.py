"""The catalog: what operators configure at run time, in a database that all gateways read."""

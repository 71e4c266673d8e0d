"""Commands of this machine: run a gateway, check a configuration, migrate a catalog, show a demo, complete words."""

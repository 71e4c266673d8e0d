"""The rig: gateways, fleets, Redis, stores and broken links as real processes, for tests and measurements; in no wheel."""

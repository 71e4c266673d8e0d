"""Endpoints that show and steer the fleet: overview, nodes, jobs, the plan, datasets."""

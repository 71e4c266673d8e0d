"""Endpoints that show and operate the fleet: overview, nodes, jobs, the plan, datasets."""

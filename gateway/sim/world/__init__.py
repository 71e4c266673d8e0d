"""Shared by simulations: a clock of events, and a cache of pools."""

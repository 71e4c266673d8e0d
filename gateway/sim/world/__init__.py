"""Shared by simulations: an event clock, and a cache with pools."""

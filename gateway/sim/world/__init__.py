"""What simulations share: a clock of events, and a cache of pools."""

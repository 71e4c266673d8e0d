"""Space: the plan of the zone, made by its leader and carried out by every node."""

"""The fleet as the admin API shows it: one reading of all nodes, and the documents made of it."""

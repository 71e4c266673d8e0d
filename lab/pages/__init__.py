"""Pages of measurements: programs record named numbers as JSON, and templates beside this module have the words."""

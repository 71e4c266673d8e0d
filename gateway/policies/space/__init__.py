"""Space: allocation, probing, and what results and streams ask for."""

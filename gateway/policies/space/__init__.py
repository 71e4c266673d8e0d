"""Space: allocation, probing, and the rotation of chunks."""

"""Space: allocation, probing, and the bids of results and streams."""

"""What operators ask for: explain, purge, verify, warm up, watch."""

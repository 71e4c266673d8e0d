"""Objects: found, fetched once, read while they are written, forgotten by writes."""

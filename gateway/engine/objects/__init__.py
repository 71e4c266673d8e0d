"""Objects: found, fetched once, read while they are being written, and forgotten when they are overwritten."""

"""Access streams of plain S3 reads: what is read, in which pattern, and what follows for the cache (IGTCache, 2025)."""

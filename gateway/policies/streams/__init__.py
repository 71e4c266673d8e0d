"""Access streams of plain S3 reads: their recognition, their patterns, and the effects on the cache (IGTCache, 2025)."""

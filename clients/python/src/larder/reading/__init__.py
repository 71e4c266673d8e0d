"""Reading items: batches and their format, samples, results, mixtures, and the origin as a fallback."""

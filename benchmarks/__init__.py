"""Side-by-side measurements: ``python -m benchmarks`` runs those that compare servers and writes benchmarks/results."""

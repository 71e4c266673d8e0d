"""Side-by-side measurements: ``python -m lab.benchmarks`` runs those that compare servers and writes lab/benchmarks/results."""

"""Side-by-side measurements: ``python -m lab.benchmarks`` runs those of servers and writes lab/benchmarks/results."""

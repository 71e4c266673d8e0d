"""The lab: benchmarks, the evaluation of the papers, and drills; `make bench`, `make evaluate`, `make drill`."""

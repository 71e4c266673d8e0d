"""The lab: benchmarks, the evaluation of the papers, drills, and their pages; `make bench`, `make evaluate`, `make drill`."""

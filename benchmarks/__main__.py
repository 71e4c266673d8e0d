"""All comparisons, one after the other: ``make bench``. A few minutes on two cores."""

from benchmarks import cold_path, index_million, s3_reads, slow_readers

for benchmark in (s3_reads, cold_path, slow_readers, index_million):
    benchmark.run()

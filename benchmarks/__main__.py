"""All comparisons, one after the other: ``make bench``. A few minutes on two cores."""

from benchmarks import cold_path, s3_reads, slow_readers

s3_reads.run()
cold_path.run()
slow_readers.run()

#!/usr/bin/env bash
# DataFrame.sample(fraction, seed=...) of Daft takes the rows at the same places of every file: a tenth of 12 Parquet files of 10 rows
# is the same one of the ten rows in each, and a quarter the same three. Each file gives at least one row besides: a twentieth of the
# 120 rows are 12, not 6, and a hundredth are 12 as well. Nothing is raised. Without a seed the places differ from file to file, but
# not the numbers.
# Expected: a random sample that the seed makes repeatable, of about the fraction of the rows. What helps: size= in place of fraction,
# which draws that many of all rows. Seen with daft 0.7.26.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'daft==0.7.26' 'pyarrow==25.0.1'
DO_NOT_TRACK=true "$home/v/bin/python" - "$home" <<'END'
import sys
import daft
import pyarrow
import pyarrow.parquet

home = sys.argv[1]
paths = [f"{home}/{file:02d}.parquet" for file in range(12)]
for file, path in enumerate(paths):
    pyarrow.parquet.write_table(pyarrow.table({"file": [file] * 10, "place": range(10)}), path)

def places(fraction=None, seed=None, size=None):
    """Returns the places that were sampled of each file."""
    rows = daft.read_parquet(paths).sample(fraction, size=size, seed=seed).to_pydict()
    taken = [set() for _ in paths]
    for file, place in zip(rows["file"], rows["place"]):
        taken[file].add(place)
    return taken

for seed in range(3):
    for fraction, rows in ((0.01, 1), (0.05, 1), (0.1, 1), (0.25, 3), (0.5, 5)):
        taken = places(fraction, seed)
        print(seed, fraction, len(taken), "files", taken[0])
        assert all(taken[0] == of_file and len(of_file) == rows for of_file in taken)
taken = places(0.5)
assert all(len(of_file) == 5 for of_file in taken)
assert any(taken[0] != of_file for of_file in taken)
taken = places(size=6, seed=0)
assert sum(map(len, taken)) == 6 and len(set.union(*taken)) > 1
END

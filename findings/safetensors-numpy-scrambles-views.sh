#!/usr/bin/env bash
# safetensors.numpy.save_file stores arrays that are not in C order, such as a transpose or every other column, with other values
# at every place, and says nothing: the bytes go to the file as they lie in memory, under the shape of the view. Expected: the
# array's own values, as 0.7.0 stores them (the project knows: issue 825). Seen with safetensors 0.8.0 and numpy 2.4.6.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'safetensors==0.8.0' 'numpy==2.4.6'
"$home/v/bin/python" - "$home" <<'END'
import sys
import numpy
from safetensors.numpy import load_file, save_file

path = sys.argv[1] + "/views.safetensors"
weights = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
views = {"transpose": weights.T, "columns": weights[:, ::2]}
save_file(views, path)
loaded = load_file(path)
for name, view in views.items():
    print(name, view.tolist(), "->", loaded[name].tolist())
assert loaded["transpose"].tolist() == [[0, 1], [2, 3], [4, 5]]
assert loaded["columns"].tolist() == [[0, 1], [2, 3]]
END

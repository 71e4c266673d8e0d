#!/usr/bin/env bash
# Dataset.map of Hugging Face, given a function that lives in a module of its own, returns the results of the function as it was:
# the key of its cache holds such a function by its name, so a program that runs again after the module was edited gets the old
# values from disk. A lambda that calls the same function is no better. A function of the main script is keyed by its code.
# Expected: a key of the code in both cases, as the documentation says that the function is hashed. Seen with datasets 5.2.0.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'datasets==5.2.0'
cat >"$home/program.py" <<'END'
import sys
from datasets import Dataset, disable_progress_bars, load_from_disk
from prepare import scaled

disable_progress_bars()
path = sys.argv[1] + "/numbers"
if sys.argv[2] == "store":
    Dataset.from_dict({"x": [1, 2, 3]}).save_to_disk(path)

def scaled_here(sample):
    return {"y": sample["x"] * FACTOR}

numbers = load_from_disk(path)
print([numbers.map(function)["y"][:] for function in (scaled, lambda sample: scaled(sample), scaled_here)])
END
run() {
    printf 'def scaled(sample):\n    return {"y": sample["x"] * %s}\n' "$1" >"$home/prepare.py"
    sed "s/FACTOR/$1/" "$home/program.py" >"$home/main.py"
    PYTHONDONTWRITEBYTECODE=1 HF_HOME="$home/hf" "$home/v/bin/python" "$home/main.py" "$home" "$2"
}
first=$(run 2 store)
second=$(run 10 reuse)
printf '%s\n' "$first" "$second"
[ "$first" = '[[2, 4, 6], [2, 4, 6], [2, 4, 6]]' ]
[ "$second" = '[[2, 4, 6], [2, 4, 6], [10, 20, 30]]' ]

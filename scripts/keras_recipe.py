"""Run the recipe for tf.data and Keras of docs/frameworks.md with the packages, which are too large for `make test`.

`make keras` makes the environment of the Python that runs it. Each item must come once per epoch, also after a resume.
"""

import sys
import tempfile
from pathlib import Path

from tests.docs.recipes import run_recipe

_ITEMS = """\
from collections import Counter
from functools import partial

import numpy

import larder
from larder.testing import MemorySource

ITEMS, ENDPOINT = 150, "memory:"
larder.Loader = partial(larder.Loader, source=MemorySource(ITEMS))


def gray(data):
    seen[int(bytes(data))] += 1
    return numpy.full(64, int(bytes(data)) / ITEMS, "float32")


seen = Counter()
"""
_AFTER = """
assert seen == Counter(dict.fromkeys(range(ITEMS), 3)), seen

state, seen = loader.state_dict(), Counter()
loader = larder.Loader(ENDPOINT, "digits.parquet", batch_size=32, seed=1)
loader.load_state_dict(state)
model.fit(tensorflow.data.Dataset.from_generator(batches, output_signature=spec), epochs=1, shuffle=False)
assert seen == Counter(range(ITEMS)), seen
print(f"Keras {keras.__version__}, TensorFlow {tensorflow.__version__}: every item once per epoch, also after a resume")
"""


def main(python: str) -> None:
    """Run it by this Python."""
    with tempfile.TemporaryDirectory() as folder:
        printed = run_recipe("import keras", Path(folder), "", _AFTER, items=_ITEMS, python=python)
    sys.stdout.write(f"{printed.splitlines()[-1]}\n")


if __name__ == "__main__":
    main(sys.argv[1])

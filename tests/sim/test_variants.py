"""The variants of the gateway that the evaluation of access streams compares."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ALL = "from lab.evaluation.variants import VARIANTS, scale_time\nscale_time()\nfor replace in VARIANTS.values():\n    replace()\n"


def test_every_variant_replaces_something(tmp_path: Path):
    """Rule: the functions and numbers that variants replace are in their modules; a moved one is an error."""
    root = Path(__file__).resolve().parents[2]
    future = tmp_path / "future.npy"
    np.save(future, np.zeros((1, 1), np.int64))
    environment = {**os.environ, "EVALUATION_FUTURE": str(future)}
    command = [sys.executable, "-c", ALL]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

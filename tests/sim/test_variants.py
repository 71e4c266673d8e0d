"""The variants of the gateway that the evaluation of access streams compares."""

import subprocess
import sys
from pathlib import Path

ALL = "from evaluation.variants import VARIANTS, scale_time\nscale_time()\nfor replace in VARIANTS.values():\n    replace()\n"


def test_every_variant_replaces_something():
    """Rule: the functions and numbers that variants replace are in the modules that use them; one that has moved is an error."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", ALL], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

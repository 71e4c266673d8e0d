"""Recipes of docs/frameworks.md for large packages: each in a new process, with items in memory instead of a gateway."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT, blocks
from tests.ray_settings import ENVIRONMENT

PAGE = ROOT / "docs/frameworks.md"
TIMEOUT = 400
"""Seconds: such a package is imported for many of them on a busy machine."""
_ITEMS = """\
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import larder.torch
from larder.testing import MemorySource
from larder.torch import watch

torch.set_num_threads(1)
ITEMS, BATCH, ENDPOINT = 60, 8, "memory:"
CachedDataset = partial(larder.torch.CachedDataset, source=MemorySource(ITEMS))
"""


def run_recipe(
    first: str, folder: Path, before: str, after: str, *, items: str = _ITEMS, python: str = sys.executable
) -> str:
    """Run a program around a block of the page and return its output.

    Args:
        first: beginning of the block.
        folder: of the process.
        before: of the program; it has ``CachedDataset`` of ``ITEMS`` items, each its own number as text.
        after: of the program.
        items: its first lines.
        python: that runs it.
    """
    (block,) = (block for block in blocks(PAGE) if block.text.startswith(first))
    program = folder / "recipe.py"
    program.write_text(f"{items}{before}\n{block.text}\n{after}", encoding="utf-8")
    done = subprocess.run(
        [python, str(program)],
        cwd=folder,
        env=os.environ | ENVIRONMENT | {"HF_HUB_OFFLINE": "1", "HOME": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, f"{block.place}: {done.stdout}{done.stderr}"
    return done.stdout

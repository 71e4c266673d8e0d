"""The recipe for Ray Train with the real package: every item once per epoch, over all workers."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.docs.recipes import TIMEOUT, run_recipe

pytestmark = pytest.mark.timeout(TIMEOUT + 30)

BEFORE = """
import ray.train.torch

FOLDER = Path.cwd()


def labelled(item):
    with (FOLDER / f"seen-{item.index}").open("a") as file:
        file.write("x")
    return torch.zeros(64), item.index % 10


ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 1024**2, log_to_driver=False, _temp_dir=TEMPORARY)
"""
AFTER = """
ray.shutdown()
"""


def test_every_item_once_over_all_workers(tmp_path: Path):
    """Two workers have ranks from torch.distributed, and between them every item of the epoch."""
    # Not below tmp_path: names of sockets have at most 107 characters.
    with TemporaryDirectory(prefix="ray-") as folder:
        run_recipe("def train(", tmp_path, f"TEMPORARY = {folder!r}\n{BEFORE}", AFTER)
    assert {path.name: path.read_text() for path in tmp_path.glob("seen-*")} == {f"seen-{n}": "x" for n in range(60)}

"""examples/train_digits.py, as a newcomer runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gateway.demo.clients import VISION
from larder import Client, Credentials
from larder.digest import build
from rig.processes import spawn
from tests.docs.conftest import IMAGES, Stage

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/train_digits.py"
TIMEOUT = 120
KEYS = {"AWS_ACCESS_KEY_ID": VISION.access_key_id, "AWS_SECRET_ACCESS_KEY": VISION.secret_access_key}

pytestmark = pytest.mark.timeout(4 * TIMEOUT)


@pytest.fixture(scope="module")
def command(stage: Stage) -> list[str]:
    """The example with a registered dataset."""
    credentials = Credentials(VISION.access_key_id, VISION.secret_access_key)
    build("s3://demo/digits/", stage.folder / "digits.parquet", endpoint=stage.endpoint, credentials=credentials)
    Client(stage.endpoint, credentials=credentials).register("digits", stage.folder / "digits.parquet")
    return [sys.executable, str(EXAMPLE), "--endpoint", stage.endpoint, "--dataset", "digits"]


def run(stage: Stage, command: list[str]) -> str:
    """Run to the end and return the output."""
    done = subprocess.run(
        command,
        cwd=stage.folder,
        env=stage.environment | KEYS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_it_learns_and_says_what_it_cost(stage: Stage, command: list[str]):
    """Each epoch has its line, the accuracy on the test set is far above guessing, and every item was counted once an epoch."""
    output = run(stage, [*command, "--test", "digits.parquet", "--epochs", "3", "--batch-size", "16"])
    epochs = [line for line in output.splitlines() if line.startswith("epoch ")]
    assert [line.split(":")[0] for line in epochs] == ["epoch 0", "epoch 1", "epoch 2"]
    assert float(epochs[-1].rpartition(" ")[2].removesuffix("%")) > 50, output
    assert f"{3 * IMAGES:,} items" in output


def test_it_goes_on_after_ctrl_c(stage: Stage, command: list[str], tmp_path: Path):
    """Ctrl-C, which reaches the workers too, saves a complete checkpoint, from which the same command resumes."""
    checkpoint, said = tmp_path / "digits.checkpoint", tmp_path / "said.txt"
    endless = [*command, "--checkpoint", str(checkpoint), "--batch-size", "16", "--epochs"]
    with said.open("w") as stream:
        training = spawn(
            [*endless, "1000000"],
            env=stage.environment | KEYS,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    deadline = time.monotonic() + TIMEOUT
    while not checkpoint.exists():
        assert training.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.01)
    os.killpg(training.pid, signal.SIGINT)
    training.wait(TIMEOUT)
    assert "stopped; the same command goes on from here" in said.read_text()
    assert "Traceback" not in said.read_text()
    state = torch.load(checkpoint)["loader"]
    assert json.dumps(state)
    output = run(stage, [*endless, str(state["epoch"] + 1)])
    assert f"in epoch {state['epoch']}" in output
    assert [line.split(":")[0] for line in output.splitlines() if line.startswith("epoch ")] == [
        f"epoch {state['epoch']}"
    ]

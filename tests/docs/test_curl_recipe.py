"""The recipe of docs/batch-protocol.md, as it stands there, against a real gateway."""

import re
import subprocess
from pathlib import Path

import pytest

from gateway.demo.clients import VISION
from larder import Client, Credentials
from larder.digest import build
from tests.docs.conftest import Stage

PAGE = Path(__file__).resolve().parents[2] / "docs/batch-protocol.md"


@pytest.mark.timeout(120)
def test_a_batch_with_curl(stage: Stage) -> None:
    """The recipe lists an archive with the three items, in order, and the manifest at the end."""
    credentials = Credentials(VISION.access_key_id, VISION.secret_access_key)
    build("s3://demo/digits/", stage.folder / "digits.parquet", endpoint=stage.endpoint, credentials=credentials)
    Client(stage.endpoint, credentials=credentials).register("digits", stage.folder / "digits.parquet")
    (recipe,) = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", recipe.replace("http://127.0.0.1:9000", stage.endpoint)],
        env=stage.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = [line.split()[-1] for line in done.stdout.splitlines()]
    assert names == ["00000000-0.png", "00000001-7.png", "00000002-42.png", "_manifest.json"]

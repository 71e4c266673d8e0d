"""Pages whose blocks run from first to last, as a newcomer would type them, each page in its own folder and terminal.

The blocks run as written; only ports and the reader's own names (a bucket, folders) are replaced.
"""

from __future__ import annotations

import io
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest
from PIL import Image

from larder import Credentials
from larder.digest import build
from rig.gateways import Settings, gateway, s3_client
from rig.origin import OriginThread
from tests.docs.blocks import ROOT, named_tests, pages
from tests.docs.conftest import put_images
from tests.docs.terminal import Terminal, quiet_port, type_page

pytestmark = pytest.mark.timeout(400)

Stage = Callable[[Path], AbstractContextManager[Terminal]]
OWN = "tests/docs/test_pages.py"
CHAIN = {"AWS_ACCESS_KEY_ID": "origin-key-a", "AWS_SECRET_ACCESS_KEY": "origin-secret-a"}
"""The origin's credentials, for the AWS credential chain."""


EXAMPLES = {f"examples/{name}": str(ROOT / "examples" / name) for name in ("pipeline_images.py", "train_images.py")}
"""Programs that pages run in a clone; the terminal has a folder of its own."""


@contextmanager
def alone(folder: Path) -> Iterator[Terminal]:
    """The page needs nothing but Larder."""
    terminal = Terminal(folder, {})
    try:
        yield terminal
    finally:
        terminal.close()


@contextmanager
def readme(folder: Path) -> Iterator[Terminal]:
    """A terminal on a machine with keys for a bucket of photographs; asserts at the end that the page's gateway serves it."""
    with OriginThread() as origin:
        origin.put("datasets", "imagenet/0001.jpg", b"a photograph")
        swaps = {
            "https://s3.eu-west-1.amazonaws.com": origin.endpoint,
            "/var/cache/larder": str(folder / "cache"),
            "500GB": "100MB",
            "9000": (port := str(quiet_port())),
            ".venv/bin/larder-gateway": "larder-gateway",
        }
        terminal = Terminal(folder, swaps, CHAIN)
        try:
            yield terminal
            [key] = tomllib.loads((folder / "larder.toml").read_text(encoding="utf-8"))["credentials"]
            with closing(
                s3_client(f"http://127.0.0.1:{port}", key["access_key_id"], key["secret_access_key"])
            ) as client:
                body = client.get_object(Bucket="datasets", Key="imagenet/0001.jpg")["Body"].read()
                assert body == b"a photograph"
        finally:
            terminal.close()


CONFIGURATION = """
[server]
port = PORT

[cache]
dir = "cache"
capacity = "10MB"
reserve = 0

[admin]
token = "an-admin-token"

[[origins]]
endpoint = "ORIGIN"
access_key_id = "origin-key-a"
secret_access_key = "origin-secret-a"
"""


@contextmanager
def operations(folder: Path) -> Iterator[Terminal]:
    """A terminal with a running gateway whose catalog has a key; asserts at the end that the page's backup restored the key."""
    port = str(quiet_port())
    asked = {"LARDER_ENDPOINT": f"http://127.0.0.1:{port}", "LARDER_ADMIN_TOKEN": "an-admin-token"}
    serve = ("larder-gateway serve --config larder.toml", f"http://127.0.0.1:{port}/-/readyz")
    terminal = Terminal(folder, {}, asked)
    with OriginThread() as origin:
        origin.put("photos", "train/0001.jpg", b"a photograph")
        configuration = CONFIGURATION.replace("PORT", port).replace("ORIGIN", origin.endpoint)
        (folder / "larder.toml").write_text(configuration, encoding="utf-8")
        try:
            terminal.start(*serve)
            terminal.shell("larder-gateway tenants create vision")
            terminal.shell("larder-gateway credentials create --tenant vision --access-key vision")
            yield terminal
            terminal.start(*serve)
            assert "vision" in terminal.shell("larder-gateway credentials list")
            # A secret that can be opened: rotating reads the row.
            terminal.shell("larder-gateway credentials rotate vision")
        finally:
            terminal.close()


@contextmanager
def client(folder: Path) -> Iterator[Terminal]:
    """A gateway with the demo's data, and a digest file of it."""
    keys = {"access_key_id": "vision", "secret_access_key": "a long random string", "tenant": "vision"}
    with OriginThread() as origin:
        put_images(origin, 100)
        with gateway(Settings(origin.endpoint, folder / "cache", credentials=(keys,)), folder) as running:
            signed = Credentials(keys["access_key_id"], keys["secret_access_key"])
            build("s3://demo/digits/", folder / "digits.parquet", endpoint=running.endpoint, credentials=signed)
            terminal = Terminal(folder, {"http://127.0.0.1:9000": running.endpoint})
            try:
                yield terminal
            finally:
                terminal.close()


@contextmanager
def photos(folder: Path) -> Iterator[Terminal]:
    """A gateway with a bucket of sixty JPEGs of three labels."""
    keys = {"access_key_id": "vision", "secret_access_key": "a long random string", "tenant": "vision"}
    signed = {"AWS_ACCESS_KEY_ID": "vision", "AWS_SECRET_ACCESS_KEY": "a long random string", "AWS_REGION": "us-east-1"}
    with OriginThread() as origin:
        for number in range(60):
            image, file = Image.effect_noise((160, 120), number), io.BytesIO()
            image.save(file, "JPEG")
            origin.put("photos", f"train/{number % 3}/{number:04}.jpg", file.getvalue())
        with gateway(Settings(origin.endpoint, folder / "cache", credentials=(keys,)), folder) as running:
            terminal = Terminal(folder, EXAMPLES | {"http://127.0.0.1:9000": running.endpoint}, signed)
            try:
                yield terminal
            finally:
                terminal.close()


@contextmanager
def folders(folder: Path) -> Iterator[Terminal]:
    """A bucket with sixty JPEGs in three folders, and the lines that a gateway before it has printed."""
    with OriginThread() as origin:
        for number in range(60):
            name, grey = ("birds", "cats", "dogs")[number % 3], (40, 128, 220)[number % 3]
            image, file = Image.new("RGB", (96, 72), (grey, grey, grey)), io.BytesIO()
            image.save(file, "JPEG")
            origin.put("photos", f"train/{name}/{number:04}.jpg", file.getvalue())
        keys = {"access_key_id": "vision", "secret_access_key": "a long random string", "tenant": "vision"}
        with gateway(Settings(origin.endpoint, folder / "cache", credentials=(keys,)), folder) as running:
            printed = {"AWS_ENDPOINT_URL": running.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
            printed |= {"AWS_ACCESS_KEY_ID": "vision", "AWS_SECRET_ACCESS_KEY": "a long random string"}
            terminal = Terminal(folder, EXAMPLES, printed)
            try:
                yield terminal
            finally:
                terminal.close()


STAGES: dict[str, Stage] = {
    "README.md": readme,
    "clients/python/README.md": client,
    "docs/adding-a-policy.md": alone,
    "docs/operations.md": operations,
    "docs/own-images.md": folders,
    "docs/pipelines.md": photos,
}


@pytest.mark.parametrize("name", STAGES)
def test_a_page_can_be_typed(name: str, tmp_path: Path):
    """Rule: every block of the page works as described, in order, from an empty folder."""
    with STAGES[name](tmp_path) as terminal:
        type_page(ROOT / name, terminal)


def test_every_page_that_names_this_module_is_typed():
    """Rule: a page that says it is tested here is."""
    assert {page.relative_to(ROOT).as_posix() for page in pages() if OWN in named_tests(page)} == set(STAGES)

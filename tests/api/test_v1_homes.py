"""Ring keys of a dataset's items: format and access."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from rig.digests import Row, write
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin
from rig.v1 import GWA, Key, ask

LIMITED: Key = ("GWL", "limited-secret-l")
STRANGER: Key = ("GWS", "stranger-secret-s")
ITEMS = 50
DIGESTS = [bytes([number]) * 3 + bytes(range(100, 129)) for number in range(ITEMS)]


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway that knows a dataset of 50 items, of which the limited key may read the first 40."""
    home = tmp_path_factory.mktemp("homes")
    credentials = (
        {"access_key_id": GWA[0], "secret_access_key": GWA[1], "tenant": "a"},
        {"access_key_id": LIMITED[0], "secret_access_key": LIMITED[1], "tenant": "a", "allow": ["data/open/**"]},
        {"access_key_id": STRANGER[0], "secret_access_key": STRANGER[1], "tenant": "b"},
    )
    rows = [
        Row(digest, "data", f"{'open' if number < 40 else 'closed'}/{number}") for number, digest in enumerate(DIGESTS)
    ]
    file = write(home / "things.parquet", rows)
    with gateway(Settings(origin.endpoint, home / "cache", credentials=credentials), home) as started:
        headers = {"content-type": "application/vnd.apache.parquet"}
        assert ask(started, "PUT", "/v1/datasets/things", file.read_bytes(), headers=headers).status == 201
        yield started


def keys_of(body: bytes) -> list[int]:
    """The keys of an answer."""
    found: list[int] = np.frombuffer(body, "<u8").tolist()
    return found


EXPECTED = [int.from_bytes(digest[:8], "little") for digest in DIGESTS]


def test_keys_are_the_beginnings_of_the_digests(running: Running) -> None:
    """Rule: an item's key is the first eight bytes of its digest, little-endian; keys come in order from ``start`` on."""
    whole = ask(running, "GET", "/v1/datasets/things/homes")
    assert (whole.status, whole.headers["content-type"]) == (200, "application/octet-stream")
    assert keys_of(whole.body) == EXPECTED
    assert keys_of(ask(running, "GET", "/v1/datasets/things/homes?start=7&count=3").body) == EXPECTED[7:10]
    assert ask(running, "GET", f"/v1/datasets/things/homes?start={ITEMS}").body == b""


def test_no_more_than_the_beginnings(running: Running) -> None:
    """Rule: no digest can be put together from an answer: it has not even nine bytes of one."""
    body = ask(running, "GET", "/v1/datasets/things/homes").body
    assert all(digest[:9] not in body for digest in DIGESTS)


def test_only_for_items_that_may_be_read(running: Running) -> None:
    """Rule: items outside the allow-list have no keys in the answer, and the first of them is named."""
    assert keys_of(ask(running, "GET", "/v1/datasets/things/homes?count=40", key=LIMITED).body) == EXPECTED[:40]
    refused = ask(running, "GET", "/v1/datasets/things/homes", key=LIMITED)
    assert (refused.status, refused.code, refused.json["index"]) == (403, "AccessDenied", 40)


def test_only_for_the_tenant(running: Running) -> None:
    """Rule: another tenant does not learn that the dataset exists."""
    refused = ask(running, "GET", "/v1/datasets/things/homes", key=STRANGER)
    assert (refused.status, refused.code) == (404, "UnknownDataset")
    assert ask(running, "GET", "/v1/datasets/things/homes", key=None).status == 403


@pytest.mark.parametrize(
    ("query", "named"),
    [("?start=-1", "start"), ("?count=0", "count"), ("?count=1048577", "count"), ("?more=1", "more")],
)
def test_bad_input(running: Running, query: str, named: str) -> None:
    """Rule: an invalid position is refused, naming the parameter."""
    refused = ask(running, "GET", f"/v1/datasets/things/homes{query}")
    assert (refused.status, refused.code) == (400, "InvalidRequest")
    assert named in refused.json["detail"]


def test_beyond_the_end(running: Running) -> None:
    """Rule: a list from beyond the end is empty."""
    refused = ask(running, "GET", f"/v1/datasets/things/homes?start={ITEMS + 1}")
    assert (refused.status, refused.code) == (400, "IndexOutOfRange")

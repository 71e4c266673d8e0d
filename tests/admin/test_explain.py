"""Explain: the predicted outcome of the next read, compared with the actual one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import larder
from rig.digests import Row, write
from rig.world import content, eventually
from tests.admin.operations_world import Zone, admin, get, post, zone

RULES = (
    {"match": "bucket/never/**", "cache": False},
    {"match": "bucket/always/**", "freshness": "always"},
    {"match": "bucket/prefix/**", "authorization": "prefix"},
)
CREDENTIALS = (
    {"access_key_id": "GWA", "secret_access_key": "gateway-secret-a", "tenant": "a"},
    {"access_key_id": "GWP", "secret_access_key": "gateway-secret-p", "tenant": "p", "allow": ["bucket/prefix/**"]},
    {"access_key_id": "GWR", "secret_access_key": "gateway-secret-r", "tenant": "p"},
    {
        "access_key_id": "GWB", "secret_access_key": "gateway-secret-b", "tenant": "b",
        "origin_access_key_id": "origin-key-b", "origin_secret_access_key": "origin-secret-b",
    },
)  # fmt: skip

BLOCK = 512 * 1024


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zone]:
    """Two nodes."""
    with zone(tmp_path_factory.mktemp("explain"), rules=RULES, credentials=CREDENTIALS, block_size="512KiB") as made:
        yield made


def explained(world: Zone, key: str, number: int = 0, access_key_id: str = "GWA") -> dict[str, Any]:
    """A gateway's explanation of the next read."""
    query = urlencode({"bucket": "bucket", "key": key, "access_key_id": access_key_id})
    found: dict[str, Any] = get(world.nodes[number], f"/explain?{query}")
    return found


def foretold(world: Zone, key: str) -> str:
    """The header that the next read will have, by what each of the gateways says; all of it while they do not agree."""
    told = [explained(world, key, number) for number in range(2)]
    words = {f"{each['outcome']}; reason={each['reason']}" if each["reason"] else str(each["outcome"]) for each in told}
    return " or ".join(sorted(words))


@pytest.mark.parametrize(
    ("key", "steps"),
    [
        ("plain", ["MISS; reason=cold", "HIT", "HIT"]),
        ("never/kept", ["BYPASS; reason=rule", "BYPASS; reason=rule"]),
        ("always/asked", ["MISS; reason=cold", "HIT; reason=revalidated", "HIT; reason=revalidated"]),
    ],
)
def test_what_is_foretold_is_what_comes(world: Zone, key: str, steps: list[str]) -> None:
    """Rule: explain and x-larder-cache of the next read use the same words, at every gateway."""
    world.origin.put(f"/bucket/{key}", content(1000, key))
    for turn, wanted in enumerate(steps):
        # A reader has its last byte before the object is written down.
        eventually(
            lambda: foretold(world, key), lambda words, wanted=wanted: words == wanted, f"{wanted} to be foretold"
        )
        assert world.read(turn % 2, f"/bucket/{key}") == wanted


def test_blocks_that_are_missing_are_counted(world: Zone) -> None:
    """Rule: explain counts the cached blocks of a partly read object."""
    world.origin.put("/bucket/large", content(4 * BLOCK + 1, "large"))
    client = world.nodes[0].client()
    client.get_object(Bucket="bucket", Key="large", Range=f"bytes=0-{BLOCK - 1}")["Body"].read()
    # A reader has its bytes before the block is written down.
    told = eventually(
        lambda: explained(world, "large", 1), lambda told: told["resident_blocks"] == 1, "the first block to be kept"
    )
    assert (told["outcome"], told["reason"], told["blocks"]) == ("MISS", "partial", 5)


def test_parts_are_listed_at_every_gateway(world: Zone) -> None:
    """Rule: explain lists the ranges of an object that its home stores as they were read, and foretells a read of the whole."""
    world.origin.put("/bucket/parts", content(4 * BLOCK, "parts"))
    for start, stop in ((700_000, 900_000), (100_000, 200_000)):
        read = world.nodes[0].client().get_object(Bucket="bucket", Key="parts", Range=f"bytes={start}-{stop - 1}")
        assert len(read["Body"].read()) == stop - start
    wanted = [{"start": 100_000, "bytes": 100_000}, {"start": 700_000, "bytes": 200_000}]
    for number in range(2):
        told = eventually(
            lambda number=number: explained(world, "parts", number), lambda told: told["parts"] == 2, "two parts"
        )
        assert (told["part_bytes"], told["first_parts"], told["resident_blocks"]) == (300_000, wanted, 0)
    assert foretold(world, "parts") == "MISS; reason=partial"
    assert world.read(0, "/bucket/parts") == "MISS; reason=partial"


def test_what_loaders_hold_is_known(world: Zone, tmp_path: Path) -> None:
    """Rule: an object whose bytes only a loader has read is cold for its name's readers, and explain says that loaders hit; every
    gateway knows, and only the tenant of the dataset learns of it."""
    body = content(1000, "item")
    world.origin.put("/bucket/item", body)
    file = write(tmp_path / "things.parquet", [Row(hashlib.sha256(body).digest(), "bucket", "item")])
    access = larder.Access(credentials=larder.Credentials("GWA", "gateway-secret-a"))
    assert len(list(larder.Loader(world.nodes[0].endpoint, str(file), batch_size=1, access=access))) == 1
    told = eventually(
        lambda: explained(world, "item", 1),
        lambda told: [each["resident"] for each in told["items"]] == [1],
        "the item to be found",
    )
    assert (told["outcome"], told["reason"]) == ("MISS", "cold")
    assert "Loaders find it in the cache: 1 of its 1 items in things-" in str(told["explanation"])
    assert explained(world, "item", access_key_id="GWB")["items"] == []
    assert explained(world, "large")["items"] == []


def test_a_grant_is_each_readers_own(world: Zone) -> None:
    """Rule: one origin key's grant says nothing about another's; the remedy is named."""
    world.origin.put("/bucket/theirs", content(1000, "theirs"))
    world.read(0, "/bucket/theirs")
    eventually(lambda: foretold(world, "theirs"), lambda words: words == "HIT", "the object to be kept")
    told = explained(world, "theirs", access_key_id="GWB")
    assert (told["outcome"], told["reason"], told["granted_until"]) == ("HIT", "revalidated", None)
    assert "prefix" in str(told["change"])
    assert explained(world, "theirs")["granted_until"] is not None


def test_what_an_allow_list_forbids_is_said(world: Zone) -> None:
    """Rule: a key that may not read the object learns only that, not the state of the cache."""
    told = explained(world, "theirs", access_key_id="GWP")
    assert (told["outcome"], told["reason"]) == ("BYPASS", "refused")
    assert "allow" in str(told["change"])


def test_the_home_is_named_and_asked(world: Zone) -> None:
    """Rule: both gateways name one home for an object, and the answer is that node's."""
    for key in (f"homes/{number}" for number in range(8)):
        told = [explained(world, key, number) for number in range(2)]
        assert told[0]["home"] == told[1]["home"] == told[0]["asked"] == told[1]["asked"]


@pytest.mark.parametrize(
    "query",
    ["bucket=b&key=k", "bucket=b&access_key_id=GWA", "key=k&access_key_id=GWA", "bucket=../b&key=k&access_key_id=GWA"],
)
def test_an_incomplete_question_is_refused_by_its_field(world: Zone, query: str) -> None:
    """Rule: bucket, key and access key must be there."""
    assert admin(world.nodes[0], "GET", f"/explain?{query}").code == "InvalidRequest"


def test_an_unknown_access_key_is_refused(world: Zone) -> None:
    """Rule: a key that is not valid is not explained away."""
    reply = admin(world.nodes[0], "GET", "/explain?bucket=b&key=k&access_key_id=NOBODY")
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    post(world.nodes[0], "/credentials/GWR/revoke")
    reply = admin(world.nodes[0], "GET", "/explain?bucket=b&key=k&access_key_id=GWR")
    assert reply.code == "InvalidRequest"


def test_misses_are_counted_by_reason_with_their_remedies(world: Zone) -> None:
    """Rule: a node's misses equal its metric, each reason with its meaning."""
    for number in range(3):
        world.origin.put(f"/bucket/counted/{number}", content(100, number))
        world.read(0, f"/bucket/counted/{number}")
    wanted = world.nodes[0].metric("larder_requests_total", outcome="MISS", reason="cold")
    found = eventually(
        lambda: get(world.nodes[1], "/explain/misses?node=node-0")["items"],
        lambda items: any((one["reason"], one["count"]) == ("cold", wanted) for one in items),
        "the misses to be told",
    )
    assert all(one["node"] == "node-0" and one["meaning"] for one in found)

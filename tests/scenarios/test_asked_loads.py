"""HEAD with ``Range: bytes=0-0`` loads the object in the background."""

from __future__ import annotations

from pathlib import Path

from rig.clients import Client, Got
from rig.gateways import Settings, fleet, gateway
from rig.origin import BOB
from rig.redis_server import RedisServer
from rig.world import MIB, Origin, content, eventually

ASKS = {"Range": "bytes=0-0"}


def read_until_hit(client: Client, path: str) -> Got:
    """The first answer to a GET that is a hit."""
    return eventually(lambda: client.get(path), lambda got: got.cache == "HIT", "a hit")


def loaded(origin: Origin, client: Client, path: str, body: bytes) -> None:
    """Ask to load an object, and wait until the origin was read, before anybody reads it."""
    before = client.ask("HEAD", path, ASKS)
    assert before.status == 206
    assert before.body == b""
    eventually(lambda: origin.reads(path), lambda reads: reads >= 1, "a load")
    assert read_until_hit(client, path).body == body


def test_an_object_is_loaded_for_who_asks(origin: Origin, tmp_path: Path) -> None:
    """Rule: the answer is that of HEAD with a range, and the whole object is then read into the cache, without a GET."""
    path = "/data/large"
    body = origin.put(path, content(3 * MIB, path))
    with (
        gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as running,
        Client(running.endpoint) as client,
    ):
        loaded(origin, client, path, body)
        asked = origin.count("GET", path)
        assert client.ask("GET", path).body == body
        assert origin.count("GET", path) == asked


def test_nothing_is_loaded_for_who_may_not_read_or_did_not_ask(origin: Origin, tmp_path: Path) -> None:
    """Rule: a plain HEAD, a refused one, and one of an object that a rule keeps out of the cache load nothing."""
    for path in ("/data/plain", "/closed/refused", "/data/excluded", "/data/last"):
        origin.put(path, content(1_000, path))
    origin.s3.owners["closed"] = BOB
    rules = ({"match": "data/excluded", "cache": False},)
    settings = Settings(origin.endpoint, tmp_path / "cache", rules=rules)
    with gateway(settings, tmp_path) as running, Client(running.endpoint) as client:
        assert client.ask("HEAD", "/data/plain").status == 200
        assert client.ask("HEAD", "/closed/refused", ASKS).status == 403
        assert client.ask("HEAD", "/data/excluded", ASKS).status == 206
        loaded(origin, client, "/data/last", content(1_000, "/data/last"))
    assert [origin.reads(path) for path in ("/data/plain", "/closed/refused", "/data/excluded")] == [0, 0, 0]


def test_the_home_loads_it(origin: Origin, tmp_path: Path) -> None:
    """Rule: in a fleet each object is loaded once, by its home, whichever node was asked."""
    paths = [f"/data/{number}" for number in range(8)]
    for path in paths:
        origin.put(path, content(1_000, path))
    with (
        RedisServer() as redis,
        fleet(origin.endpoint, redis.url, 2, tmp_path) as nodes,
        Client(nodes[0].endpoint) as asking,
        Client(nodes[1].endpoint) as reading,
    ):
        for path in paths:
            assert asking.ask("HEAD", path, ASKS).status == 206
        for path in paths:
            assert eventually(lambda path=path: origin.reads(path), lambda reads: reads >= 1, "a load") == 1
            assert read_until_hit(reading, path).body == content(1_000, path)
        assert [origin.reads(path) for path in paths] == [1] * len(paths)

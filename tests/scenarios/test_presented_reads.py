"""Reads that want an object presented in another way: headers that the request names, and the only part of an object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from rig.clients import Client, Got, get
from rig.gateways import Running, Settings, gateway
from rig.origin import BOB
from rig.world import MIB, Origin, content, eventually

PAYS = {"x-amz-request-payer": "requester"}
OVERRIDES = {
    "response-content-type": "text/plain",
    "response-content-language": "fr",
    "response-expires": "Thu, 01 Dec 1994 16:00:00 GMT",
    "response-cache-control": "no-store",
    "response-content-disposition": 'attachment; filename="a"',
    "response-content-encoding": "br",
}
QUERY = "&".join(f"{name}={quote(value)}" for name, value in OVERRIDES.items())


@pytest.fixture(scope="module")
def running(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with one worker."""
    with gateway(
        Settings(origin.endpoint, tmp_path_factory.mktemp("cache")), tmp_path_factory.mktemp("home")
    ) as running:
        yield running


def cached(running: Running, origin: Origin, path: str) -> bytes:
    """An object that is in the cache."""
    body = origin.put(path, content(20_000, path))
    eventually(lambda: get(running, path).cache, lambda cache: cache == "HIT", "a hit")
    return body


def shown(got: Got) -> dict[str, str]:
    """The headers that a request can name, as they came."""
    return {name: got.headers.get(name.removeprefix("response-"), "") for name in OVERRIDES}


def asked(running: Running, path: str, query: str, times: int = 1, method: str = "GET", **headers: str) -> list[Got]:
    """The answers to one read, made several times."""
    with Client(running.endpoint) as client:
        return [client.ask(method, f"{path}?{query}", headers) for _ in range(times)]


def test_named_headers_are_in_answers_from_the_cache(running: Running, origin: Origin) -> None:
    """Rule: once the store has shown in a bucket that it obeys, the cache replaces the six headers, in parts too."""
    bodies = [cached(running, origin, path) for path in ("/named/a", "/named/b")]
    (first,) = asked(running, "/named/a", QUERY)
    reads = origin.count("", "/named/")
    others = asked(running, "/named/b", QUERY, 2)
    (part,) = asked(running, "/named/b", QUERY, Range="bytes=5-9")
    plain = get(running, "/named/b")
    assert (first.cache, [got.cache for got in (*others, part)]) == ("BYPASS; reason=sub-resource", ["HIT"] * 3)
    assert [shown(got) for got in (first, *others, part)] == [OVERRIDES] * 4
    assert [first.body, others[0].body, part.body] == [*bodies, bodies[1][5:10]]
    assert (plain.headers["content-type"], "content-language" in plain.headers) == ("binary/octet-stream", False)
    assert origin.count("", "/named/") == reads


def test_a_store_may_treat_head_differently(running: Running, origin: Origin) -> None:
    """Rule: what the store has shown for GET says nothing of HEAD, which it is asked itself, once."""
    cached(running, origin, "/heads/a")
    asked(running, "/heads/a", QUERY)
    first, again = asked(running, "/heads/a", QUERY, 2, "HEAD")
    assert [first.cache, again.cache] == ["BYPASS; reason=sub-resource", "HIT"]
    assert [shown(first), shown(again)] == [OVERRIDES] * 2


def test_a_cold_read_with_named_headers_is_kept(running: Running, origin: Origin) -> None:
    """Rule: it is a plain read for the cache, and the next read of any form is a hit."""
    cached(running, origin, "/kept/first")
    asked(running, "/kept/first", QUERY)
    body = origin.put("/kept/cold", content(3_000, "cold"))
    (cold,) = asked(running, "/kept/cold", QUERY)
    assert (cold.body, shown(cold), cold.cache) == (body, OVERRIDES, "MISS; reason=cold")
    assert get(running, "/kept/cold").cache == "HIT"
    assert origin.count("GET", "/kept/cold") == 1


@pytest.mark.parametrize("query", ["response-content-type=", "response-content-type=a%0Ab", "response-expires=soon"])
def test_what_stores_may_read_differently_is_forwarded(running: Running, origin: Origin, query: str) -> None:
    """Rule: the cache names no header whose value the store might refuse."""
    cached(running, origin, "/odd/a")
    asked(running, "/odd/a", QUERY)
    reads = origin.count("GET", "/odd/")
    assert asked(running, "/odd/a", query)[0].cache == "BYPASS; reason=sub-resource"
    assert origin.count("GET", "/odd/") == reads + 1


def test_an_unsigned_request_must_not_name_headers(running: Running, origin: Origin) -> None:
    """Rule: it gets the store's refusal, S3's is InvalidRequest, also for an object that the cache could present so."""
    cached(running, origin, "/public/first")
    asked(running, "/public/first", QUERY)
    origin.s3.public.append("public/*")
    origin.put("/public/a", b"public")
    reads = origin.count("GET", "/public/")
    with Client(running.endpoint, "") as client:
        assert client.get("/public/a").status == 200
        refused = client.get("/public/a?response-content-type=text%2Fhtml")
    assert (refused.status, b"<Code>InvalidRequest</Code>" in refused.body) == (400, True)
    assert origin.count("GET", "/public/") == reads + 2


def test_the_only_part_of_an_object_is_the_object(running: Running, origin: Origin) -> None:
    """Rule: once the store has shown its form, part 1 of an object of one part is answered from the cache in that form."""
    bodies = {path: cached(running, origin, path) for path in ("/parts/a", "/parts/b")}
    (first,) = asked(running, "/parts/a", "partNumber=1")
    reads = origin.count("", "/parts/")
    got, again = asked(running, "/parts/b", "partNumber=1&x-id=GetObject", 2)
    (known,) = asked(running, "/parts/b", "partNumber=1", **{"If-None-Match": got.headers["etag"]})
    assert (first.cache, got.cache, again.cache) == ("BYPASS; reason=sub-resource", "HIT", "HIT")
    assert [(answer.status, answer.headers["content-range"]) for answer in (first, got)] == [
        (206, "bytes 0-19999/20000")
    ] * 2
    assert (got.body, "x-amz-mp-parts-count" in got.headers, known.status) == (bodies["/parts/b"], False, 304)
    assert origin.count("", "/parts/") == reads


def test_a_cold_object_of_one_part_is_kept(running: Running, origin: Origin) -> None:
    """Rule: a HEAD tells that it has one part, and one GET fills the cache."""
    cached(running, origin, "/cold/first")
    asked(running, "/cold/first", "partNumber=1")
    body = origin.put("/cold/a", content(5_000, "a"))
    (cold,) = asked(running, "/cold/a", "partNumber=1")
    assert (cold.status, cold.body, get(running, "/cold/a").cache) == (206, body, "HIT")
    assert [seen.method for seen in origin.s3.seen if seen.raw_path == "/cold/a"] == ["HEAD", "GET"]


def test_a_cold_head_of_the_only_part_is_no_hit(running: Running, origin: Origin) -> None:
    """Rule: the answer says that the store was asked, although what was asked for first was the object without its part."""
    cached(running, origin, "/looked/first")
    asked(running, "/looked/first", "partNumber=1", method="HEAD")
    origin.put("/looked/a", content(3_000, "looked"))
    cold, warm = asked(running, "/looked/a", "partNumber=1", 2, "HEAD")
    assert [cold.cache, warm.cache] == ["MISS; reason=cold", "HIT"]
    assert cold.headers["content-length"] == "3000"


def test_a_range_of_the_header_of_what_is_not_kept(origin: Origin, tmp_path: Path) -> None:
    """Rule: HEAD with a range gets the store's 206 for an object that is too large for the cache, too."""
    origin.put("/large/a", content(3 * MIB, "large"))
    with gateway(Settings(origin.endpoint, tmp_path / "cache", capacity="2MB"), tmp_path) as running:
        (part,) = asked(running, "/large/a", "", method="HEAD", Range="bytes=1-16384")
    assert (part.status, part.headers["content-range"]) == (206, f"bytes 1-16384/{3 * MIB}")


def test_parts_of_an_object_of_several_are_the_stores(running: Running, origin: Origin) -> None:
    """Rule: the cache does not know where parts end, and a first part loads no whole object."""
    cached(running, origin, "/several/first")
    asked(running, "/several/first", "partNumber=1")
    store, parts = running.client(), [content(5 * MIB, "one"), b"two"]
    upload = store.create_multipart_upload(Bucket="several", Key="m")["UploadId"]
    sent = [
        {"PartNumber": number, "ETag": store.upload_part(
            Bucket="several", Key="m", UploadId=upload, PartNumber=number, Body=part)["ETag"]}
        for number, part in enumerate(parts, 1)
    ]  # fmt: skip
    store.complete_multipart_upload(Bucket="several", Key="m", UploadId=upload, MultipartUpload={"Parts": sent})
    got = [asked(running, "/several/m", f"partNumber={number}")[0] for number in (1, 2)]
    assert [(answer.body, answer.headers["x-amz-mp-parts-count"]) for answer in got] == [(part, "2") for part in parts]
    assert get(running, "/several/m").cache == "MISS; reason=cold"


def test_a_part_with_a_range_is_the_stores_to_refuse(running: Running, origin: Origin) -> None:
    """Rule: S3 refuses both together, and so does an answer to a read of a cached object."""
    cached(running, origin, "/ranged/a")
    asked(running, "/ranged/a", "partNumber=1")
    assert asked(running, "/ranged/a", "partNumber=1", Range="bytes=0-9")[0].status == 400


def test_who_pays_is_told_of_charges(running: Running, origin: Origin) -> None:
    """Rule: a payer's answers from the cache say what the store's did; others' do not."""
    origin.s3.owners["charged"] = BOB
    body = origin.put("/charged/a", content(2_000, "charged"))
    try:
        with Client(running.endpoint) as client:
            assert client.ask("GET", "/charged/a", PAYS).body == body
            hit = eventually(lambda: client.ask("GET", "/charged/a", PAYS), lambda got: got.cache == "HIT", "a hit")
            del origin.s3.owners["charged"]
            plain = client.get("/charged/a")
    finally:
        origin.s3.owners.clear()
    assert hit.headers["x-amz-request-charged"] == "requester"
    assert (plain.status, "x-amz-request-charged" in plain.headers) == (200, False)


def test_an_origin_may_always_pay(origin: Origin, tmp_path: Path) -> None:
    """Rule: with ``requester_pays`` every signed request accepts the charges, also listings and writes; unsigned ones do not."""
    origin.s3.owners["paid"] = BOB
    body = origin.put("/paid/a", content(2_000, "paid"))
    settings = Settings(origin.endpoint, tmp_path / "cache", origin={"requester_pays": True})
    try:
        with gateway(settings, tmp_path) as running, Client(running.endpoint) as client:
            assert client.get("/paid/a").body == body
            assert client.get("/paid?list-type=2").status == 200
            assert client.put("/paid/b", b"b").status == 200
            with Client(running.endpoint, "") as stranger:
                assert stranger.get("/paid/a").status == 403
    finally:
        origin.s3.owners.clear()
    seen = [seen for seen in origin.s3.seen if seen.raw_path.startswith("/paid")]
    assert {seen.header("x-amz-request-payer") for seen in seen if seen.access_key_id} == {"requester"}
    assert {seen.header("x-amz-request-payer") for seen in seen if not seen.access_key_id} == {""}

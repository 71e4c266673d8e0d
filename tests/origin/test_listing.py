"""Listings of the origin's buckets."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import cast

import pytest

from gateway.base.config import Origin
from gateway.model.errors import IdentityGone, LarderError, OriginUnavailable
from gateway.model.keys import OriginIdentity
from gateway.origin.client import OriginClient
from gateway.origin.listing import ListedObject, ListingPage, ListingRefused, Listings, ListingUnreadable
from rig.origin import FakeOrigin, OriginThread
from rig.origin_auth import User

ME = OriginIdentity("default", "OK")


class Answering:
    """An origin client whose every answer is the same."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        self.body = body
        self.status = status
        self.asked: list[tuple[object, ...]] = []

    async def send(self, *asked: object) -> Answering:
        """The answer."""
        self.asked.append(asked)
        return self

    async def read(self, limit: int) -> bytes:
        """Its body."""
        if len(self.body) > limit:
            raise OriginUnavailable("too large")
        return self.body


def answering(body: bytes, status: int = 200) -> Listings:
    """Listings of an origin that gives this answer."""
    return Listings(cast(OriginClient, Answering(body, status)))


@pytest.fixture
def origin() -> Iterator[FakeOrigin]:
    """An origin with a few keys in bucket ``b``."""
    with OriginThread([User("OK", "origin-secret")]) as running:
        for key in ("train/a b&c+%25/\u00e9.jpg", "train/2.jpg", "val/1.jpg", "top"):
            running.put("b", key, b"xy")
        yield running


@pytest.fixture
async def listings(origin: FakeOrigin) -> AsyncIterator[Listings]:
    """Listings of that origin, with its keys."""
    named = Origin(endpoint=origin.endpoint, access_key_id="OK", secret_access_key="origin-secret")
    client = OriginClient((named,), (), now=time.time)
    yield Listings(client)
    await client.close()


async def test_pages_follow_each_other_by_token_and_by_key(listings: Listings) -> None:
    """Rule: a listing continues with the page's token, or after its last key; either way it lists every key once."""
    whole = await listings.list_page(ME, "b")
    assert [each.key for each in whole.objects] == ["top", "train/2.jpg", "train/a b&c+%25/\u00e9.jpg", "val/1.jpg"]
    assert {each.size for each in whole.objects} == {2}
    assert (whole.truncated, whole.token) == (False, "")
    for by_token in (True, False):
        keys, page = [], await listings.list_page(ME, "b", limit=1)
        keys.append(page.objects[0].key)
        while page.truncated:
            going_on = {"token": page.token} if by_token else {"start_after": keys[-1]}
            page = await listings.list_page(ME, "b", limit=1, **going_on)
            keys.append(page.objects[0].key)
        assert keys == [each.key for each in whole.objects]


async def test_a_delimiter_gives_common_prefixes(listings: Listings) -> None:
    """Rule: keys below the delimiter are listed as prefixes; a prefix with blanks and percent signs is taken literally."""
    assert await listings.list_page(ME, "b", delimiter="/") == ListingPage(
        (ListedObject("top", 2),), ("train/", "val/"), False, ""
    )
    nested = await listings.list_page(ME, "b", "train/a b&c+%25/")
    assert [each.key for each in nested.objects] == ["train/a b&c+%25/\u00e9.jpg"]
    assert (await listings.list_page(ME, "b", "train/", delimiter="/")).prefixes == ("train/a b&c+%25/",)


async def test_failures_are_the_projects_errors(listings: Listings, origin: FakeOrigin) -> None:
    """Rule: a refusal has the origin's status; a removed identity and an unreachable origin are distinct errors."""
    with pytest.raises(ListingRefused) as refused:
        await listings.list_page(ME, "nowhere")
    assert refused.value.status == 404
    with pytest.raises(IdentityGone):
        await listings.list_page(OriginIdentity("gone", "OK"), "b")
    away = OriginClient((Origin(endpoint="http://127.0.0.1:1"),), (), now=time.time)
    try:
        with pytest.raises(OriginUnavailable):
            await Listings(away).list_page(OriginIdentity("default", ""), "b")
    finally:
        await away.close()


@pytest.mark.parametrize(
    ("listed", "encoding", "key"),
    [
        ("my+data/a%2Bb.jpg", "<EncodingType>url</EncodingType>", "my data/a+b.jpg"),
        ("my%20data/a%2Bb.jpg", "<EncodingType>url</EncodingType>", "my data/a+b.jpg"),
        ("my data/a+b%41.jpg", "", "my data/a+b%41.jpg"),
    ],
)
async def test_keys_are_read_as_stores_list_them(listed: str, encoding: str, key: str) -> None:
    """Rule: keys are decoded if the page says that they are encoded; stores without ``encoding-type`` list them literally."""
    item = f"<Contents><Key>{listed}</Key><Size>1</Size></Contents>"
    page = f"<ListBucketResult xmlns='u'>{encoding}<IsTruncated>false</IsTruncated>{item}</ListBucketResult>"
    assert await answering(page.encode()).list_page(ME, "b") == ListingPage((ListedObject(key, 1),), (), False, "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<a",
        b"{}",
        b"<L><IsTruncated>true</IsTruncated></L>",
        b"<L><Contents><Key>k</Key></Contents></L>",
        b"<L><Contents><Key>k</Key><Size>many</Size></Contents></L>",
        b'<!DOCTYPE l [<!ENTITY e "x">]><L>&e;</L>',
        b"<Error><Code>SlowDown</Code></Error>",
    ],
)
async def test_an_answer_that_is_not_a_page_is_unreadable(body: bytes) -> None:
    """Rule: an answer that is not a listing, or is truncated and empty, is an error, never an empty page."""
    with pytest.raises(ListingUnreadable):
        await answering(body).list_page(ME, "b")


@pytest.mark.parametrize("status", [204, 301, 307, 403, 500, 503])
async def test_a_refusal_is_asked_once(status: int) -> None:
    """Rule: aiobotocore neither retries nor looks for another region: where requests go is the configuration's decision."""
    fake = Answering(b"<Error><Code>PermanentRedirect</Code><Endpoint>elsewhere</Endpoint></Error>", status)
    with pytest.raises(ListingRefused) as refused:
        await Listings(cast(OriginClient, fake)).list_page(ME, "b")
    assert (refused.value.status, len(fake.asked)) == (status, 1)


async def test_a_page_has_a_bound_in_bytes() -> None:
    """Rule: an answer larger than any page is not read to its end."""
    with pytest.raises(OriginUnavailable, match="too large"):
        await answering(b" " * (16 * 1024**2 + 1)).list_page(ME, "b")


async def test_nothing_of_an_object_is_read_but_its_key_and_size() -> None:
    """Rule: a store's extra elements cost no call per object, because a page is parsed in the event loop."""
    told = "<LastModified>2026-11-22T16:08:00.000Z</LastModified><ETag>&quot;e&quot;</ETag><StorageClass>STANDARD</StorageClass>"
    told += "<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><Owner><ID>i</ID><DisplayName>d</DisplayName></Owner>"
    calls = []
    for other in ("", told):
        each = "".join(f"<Contents><Key>k{n}</Key><Size>{n}</Size>{other}</Contents>" for n in range(100))
        listings = answering(f"<ListBucketResult>{each}</ListBucketResult>".encode())
        await listings.list_page(ME, "b")
        seen: Counter[str] = Counter()
        sys.setprofile(lambda frame, event, _, seen=seen: seen.update([event]) if event == "call" else None)  # type: ignore[misc]
        try:
            page = await listings.list_page(ME, "b")
        finally:
            sys.setprofile(None)
        assert page.objects == tuple(ListedObject(f"k{n}", n) for n in range(100))
        calls.append(seen["call"])
    assert calls[1] - calls[0] < 100 * 12  # the parser looks at the name of every element, and at no more


async def test_the_files_of_the_aws_cli_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: profiles and endpoint switches in the environment are for the credential chain."""
    for name, value in {
        "AWS_PROFILE": "missing",
        "AWS_ENDPOINT_URL": "http://elsewhere",
        "AWS_USE_FIPS_ENDPOINT": "true",
        "AWS_USE_DUALSTACK_ENDPOINT": "true",
        "AWS_DEFAULTS_MODE": "auto",
    }.items():
        monkeypatch.setenv(name, value)
    fake = Answering(b"<L><IsTruncated>false</IsTruncated></L>")
    page = await Listings(cast(OriginClient, fake)).list_page(ME, "b", "p")
    assert page == ListingPage((), (), False, "")
    assert fake.asked[0][:3] == (ME, "GET", "/b")


async def test_only_the_projects_errors_leave(listings: Listings) -> None:
    """Rule: a bucket name that aiobotocore rejects fails like every other listing."""
    with pytest.raises(LarderError):
        await listings.list_page(ME, "a b")

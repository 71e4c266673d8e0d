"""OriginClient against a raw socket server and the fake origin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.base.config import Credential
from gateway.model.errors import GatewayRefused, IdentityGone, OriginUnavailable, S3Error
from gateway.model.keys import OriginIdentity
from gateway.origin.credentials import identity_of
from rig.origin import ALICE, BOB, FakeOrigin
from rig.origin_faults import Hang, Refuse
from tests.origin.raw_server import ANONYMOUS, AS_ALICE, EMPTY, RawServer, client_for, content, origin_at, status_of


@pytest.mark.parametrize(
    "raw_path",
    [
        "/b/a/../c", "/b/./k", "/b//k", "/b/k%2Fl", "/b/k%2fl", "/b/100%25", "/b/a+b", "/b/%C3%A9", "/b/k%20l", "/b/k;v=1",
        "/b/http://evil.example/x", "/b/user@evil.example", "/b/\\evil.example", "//evil.example/k", "/@evil.example/",
        "/b/k'()*!",
    ],
)  # fmt: skip
async def test_path_goes_to_the_wire_byte_for_byte(raw_path: str) -> None:
    """Any path is sent unchanged to the configured host (RFC 9112, 3.2.1)."""
    async with RawServer([[EMPTY]]) as server:
        client = await client_for(origin_at(server.endpoint))
        (await client.send(AS_ALICE, "GET", raw_path, "", ())).release()
        await client.close()
    head = server.requests[0].split(b"\r\n")
    assert head[0] == f"GET {raw_path} HTTP/1.1".encode()
    assert f"Host: {server.endpoint.removeprefix('http://')}".encode() in head


@pytest.mark.parametrize("query", ["b=2&a=1", "x=%2f%2F", "versionId=", "acl", "a=b=c&&d", "prefix=a+b", "x=%"])
async def test_query_goes_to_the_wire_byte_for_byte(query: str) -> None:
    """Order, empty parameters and escapes of the query are the client's."""
    async with RawServer([[EMPTY]]) as server:
        client = await client_for(origin_at(server.endpoint))
        (await client.send(AS_ALICE, "GET", "/b/k", query, ())).release()
        await client.close()
    assert server.requests[0].startswith(f"GET /b/k?{query} HTTP/1.1\r\n".encode())


@pytest.mark.parametrize(
    ("raw_path", "query"),
    [
        ("http://evil.example/b/k", ""), ("b/k", ""), ("", ""), ("*", ""), ("@evil.example/b", ""),
        ("/b/k HTTP/1.1\r\nHost: evil.example\r\n", ""), ("/b/k\n", ""), ("/b/k l", ""), ("/b/k?acl", ""), ("/b/k#f", ""),
        ("/b/ä", ""), ("/b/k", "a b"), ("/b/k", "a\r\nb"), ("/b/k", "a#b"), ("/b/k\x7f", ""),
    ],
)  # fmt: skip
async def test_what_cannot_be_a_path_is_refused(raw_path: str, query: str) -> None:
    """A path or query that would end the request line or name another host is refused."""
    async with RawServer([[EMPTY]]) as server:
        client = await client_for(origin_at(server.endpoint))
        with pytest.raises(S3Error, match="InvalidURI"):
            await client.send(AS_ALICE, "GET", raw_path, query, ())
        await client.close()
        assert server.connections == 0


async def test_only_our_own_default_headers_are_sent() -> None:
    """The bytes stored must not depend on the library: no compression is asked for, no type is made up."""
    async with RawServer([[EMPTY]]) as server:
        client = await client_for(origin_at(server.endpoint))
        body = content(b"abc")
        (await client.send(ANONYMOUS, "PUT", "/b/k", "", [("X-Amz-Meta-A", "1")], body=body, content_length=3)).abort()
        await client.close()
    names = {line.partition(b":")[0] for line in server.requests[0].split(b"\r\n")[1:] if line}
    assert names == {b"Host", b"User-Agent", b"Accept", b"Accept-Encoding", b"X-Amz-Meta-A", b"Content-Length"}
    assert b"Accept-Encoding: identity" in server.requests[0]


async def test_a_host_header_of_the_caller_changes_nothing() -> None:
    """The Host that is sent and signed is the configured one."""
    async with RawServer([[EMPTY]]) as server:
        client = await client_for(origin_at(server.endpoint))
        (await client.send(ANONYMOUS, "GET", "/b/k", "", [("host", "evil.example")])).release()
        await client.close()
    assert b"evil.example" not in server.requests[0]


async def test_response_headers_keep_order_spelling_and_repetitions() -> None:
    """The origin's headers keep order, spelling and repetitions, including bytes beyond ASCII."""
    answer = (
        b'HTTP/1.1 200 OK\r\nETAG: "x"\r\nx-A: 1\r\nContent-Length: 0\r\nx-A: 2\r\nx-amz-meta-n: \xc3\xa9\xff\r\n\r\n'
    )
    async with RawServer([[answer]]) as server:
        client = await client_for(origin_at(server.endpoint))
        response = await client.send(AS_ALICE, "GET", "/b/k", "", ())
        response.release()
        await client.close()
    expected = [("ETAG", '"x"'), ("x-A", "1"), ("Content-Length", "0"), ("x-A", "2"), ("x-amz-meta-n", "Ã©ÿ")]
    assert response.headers == expected
    assert response.header("etag") == '"x"'
    assert response.header("absent") is None


async def test_header_bytes_beyond_ascii_are_sent_as_they_came() -> None:
    """A character of a header value is a byte; UTF-8 metadata arrives at the origin as the same UTF-8."""
    async with RawServer([[EMPTY]]) as server:
        client = await client_for(origin_at(server.endpoint))
        (await client.send(AS_ALICE, "GET", "/b/k", "", [("x-amz-meta-n", "é".encode().decode("latin-1"))])).release()
        await client.close()
    assert "x-amz-meta-n: é\r\n".encode() in server.requests[0]


async def test_a_stale_connection_is_replaced_without_the_caller_noticing() -> None:
    """A kept-alive connection that the origin closed costs one silent repetition of a request without a body."""
    async with RawServer([[EMPTY, b""], [EMPTY]]) as server:
        client = await client_for(origin_at(server.endpoint))
        (await client.send(AS_ALICE, "GET", "/b/k", "", ())).release()
        again = await client.send(AS_ALICE, "GET", "/b/k", "", ())
        again.release()
        await client.close()
    assert (again.status, server.connections, len(server.requests)) == (200, 2, 3)


async def test_a_body_is_never_sent_twice() -> None:
    """A stream that was read cannot be repeated, so the caller learns that the origin broke off."""
    async with RawServer([[EMPTY, b""], [EMPTY]]) as server:
        client = await client_for(origin_at(server.endpoint))
        (await client.send(AS_ALICE, "GET", "/b/k", "", ())).release()
        with pytest.raises(OriginUnavailable):
            await client.send(AS_ALICE, "PUT", "/b/k", "", (), body=content(b"abc"), content_length=3)
        await client.close()
    assert len(server.requests) == 2


async def test_redirects_are_not_followed() -> None:
    """A redirect is a refusal of the gateway: following it would let an origin choose our next host."""
    answer = b"HTTP/1.1 307 T\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    async with RawServer([[answer]]) as server:
        client = await client_for(origin_at(server.endpoint))
        with pytest.raises(GatewayRefused, match=r"TemporaryRedirect.*origins\.endpoint"):
            await client.send(AS_ALICE, "GET", "/b/k", "", ())
        await client.close()


async def test_the_first_bytes_come_before_the_last() -> None:
    """next_chunk returns the bytes that have arrived, so readers can follow a fill in progress."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", b"a" * 500 + b"b" * 500)
        gate = origin.inject(Hang(after=500)).gate
        client = await client_for(origin_at(origin.endpoint))
        response = await client.send(AS_ALICE, "GET", "/b/k", "", ())
        assert await response.next_chunk() == b"a" * 500
        gate.open()
        assert b"".join([chunk async for chunk in response.chunks()]) == b"b" * 500
        assert await response.next_chunk() == b""
        response.release()
        await client.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello",
    ],
)
async def test_a_body_without_its_end_is_origin_unavailable(answer: bytes) -> None:
    """Neither a missing last chunk nor broken framing passes for the end of a body."""
    async with RawServer([[answer]]) as server:
        client = await client_for(origin_at(server.endpoint))
        with pytest.raises(OriginUnavailable):
            await (await client.send(AS_ALICE, "GET", "/b/k", "", ())).read(1000)
        await client.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 600 Beyond\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 999 Beyond\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_an_answer_that_is_not_http_is_origin_unavailable(answer: bytes) -> None:
    """An answer that is not HTTP raises OriginUnavailable."""
    async with RawServer([[answer]]) as server:
        client = await client_for(origin_at(server.endpoint))
        with pytest.raises(OriginUnavailable):
            await client.send(AS_ALICE, "GET", "/b/k", "", ())
        await client.close()


async def test_no_more_connections_than_allowed() -> None:
    """max_connections bounds the concurrent requests of one worker to an origin; further ones wait."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", b"x")
        gate = origin.inject(Hang(times=3)).gate
        client = await client_for(origin_at(origin.endpoint, max_connections=2))
        asking = [asyncio.create_task(status_of(client)) for _ in range(3)]
        async with asyncio.timeout(10):
            while origin.count() < 2:
                assert not (await asyncio.wait(asking, timeout=0.01))[0]
        await asyncio.wait(asking, timeout=0.1)
        assert origin.count() == 2
        gate.open()
        assert await asyncio.gather(*asking) == [200, 200, 200]
        await client.close()


async def test_answers_without_a_body_give_the_connection_back() -> None:
    """HEAD and 304 announce a length and send nothing."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
    unchanged = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"
    async with RawServer([[head, unchanged, EMPTY]]) as server:
        client = await client_for(origin_at(server.endpoint))
        for method in ("HEAD", "GET", "GET"):
            assert await (await client.send(AS_ALICE, method, "/b/k", "", ())).read(1000) == b""
        assert server.connections == 1
        await client.close()


async def test_a_body_after_the_head_of_an_answer_to_head_is_dropped() -> None:
    """radosgw sends one after "HEAD ?acl", in one packet with the head; the connection ends, so it passes for no other answer."""
    odd = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<a/>\n"
    async with RawServer([[odd], [b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\n"]]) as server:
        client = await client_for(origin_at(server.endpoint))
        for status in (200, 404):
            response = await client.send(ANONYMOUS, "HEAD", "/b/k", "acl", [("Connection", "close")])
            assert response.status == status
            response.release()
        assert server.connections == 2
        await client.close()


async def test_an_origin_that_takes_no_more_of_a_body_is_unavailable() -> None:
    """An upload must not hang because the origin stopped reading; read_timeout is the longest it may stop."""
    done = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    client = await client_for(origin_at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", read_timeout=0.2))
    pieces = [bytes(1 << 20)] * 32
    with pytest.raises(OriginUnavailable):
        await client.send(AS_ALICE, "PUT", "/b/k", "", (), body=content(*pieces), content_length=32 << 20)
    done.set()
    await client.close()
    server.close()


async def test_a_slow_client_does_not_make_the_origin_unavailable() -> None:
    """The time between two pieces of a body is the client's affair."""

    async def slow() -> AsyncIterator[bytes]:
        yield b"abc"
        await asyncio.sleep(0.5)
        yield b"def"

    async with FakeOrigin() as origin:
        origin.put("b", "other", b"")
        client = await client_for(origin_at(origin.endpoint, read_timeout=0.2))
        response = await client.send(AS_ALICE, "PUT", "/b/k", "", (), body=slow(), content_length=6)
        assert response.status == 200
        await response.read(1000)
        await client.close()


async def test_read_refuses_more_than_the_limit() -> None:
    """An error document or list is read whole only up to a bound."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", bytes(1001))
        client = await client_for(origin_at(origin.endpoint))
        with pytest.raises(OriginUnavailable, match="larger than"):
            await (await client.send(AS_ALICE, "GET", "/b/k", "", ())).read(1000)
        assert len(await (await client.send(AS_ALICE, "GET", "/b/k", "", ())).read(1001)) == 1001
        await client.close()


async def test_a_released_connection_is_used_again_and_an_aborted_one_is_not() -> None:
    """Keep-alive after a whole body; no reuse when bytes are still on their way."""
    async with RawServer([[EMPTY, EMPTY, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"], [EMPTY]]) as server:
        client = await client_for(origin_at(server.endpoint))
        for _ in range(2):
            (await client.send(AS_ALICE, "GET", "/b/k", "", ())).release()
        assert server.connections == 1
        (await client.send(AS_ALICE, "GET", "/b/k", "", ())).release()
        (await client.send(AS_ALICE, "GET", "/b/k", "", ())).release()
        assert server.connections == 2
        await client.close()


async def fails_after(piece: bytes) -> AsyncIterator[bytes]:
    """A body that turns out to be wrong after its first piece."""
    yield piece
    raise S3Error("BadDigest")


@pytest.mark.parametrize(
    ("body", "length", "code"),
    [
        (lambda: fails_after(b"abc"), 3, "BadDigest"),
        (lambda: content(b"abc"), 4, "IncompleteBody"),
        (lambda: content(b"abc"), 2, "IncompleteBody"),
    ],
)
async def test_a_body_that_fails_is_never_completed(
    body: Callable[[], AsyncIterator[bytes]], length: int, code: str
) -> None:
    """The error of a failing body reaches the caller unchanged, and the origin stores nothing."""
    async with FakeOrigin() as origin:
        origin.put("b", "other", b"")
        client = await client_for(origin_at(origin.endpoint))
        with pytest.raises(S3Error, match=code):
            await client.send(AS_ALICE, "PUT", "/b/k", "", (), body=body(), content_length=length)
        await client.close()
        assert list(origin.buckets.objects["b"]) == ["other"]


async def test_tenants_sign_with_their_own_keys_and_anonymous_with_none() -> None:
    """The origin sees the identity's keys; an anonymous caller never borrows the gateway's."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", b"x")
        settings = origin_at(origin.endpoint)
        own = Credential(
            access_key_id="g",
            secret_access_key="s",
            origin_access_key_id=BOB.access_key_id,
            origin_secret_access_key=BOB.secret_access_key,
        )
        client = await client_for(settings, own)
        statuses = []
        for identity in (identity_of(settings, own), AS_ALICE, identity_of(settings, None)):
            response = await client.send(identity, "GET", "/b/k", "", ())
            statuses.append(response.status)
            await response.read(1000)
        await client.close()
    assert statuses == [200, 200, 403]
    assert [seen.access_key_id for seen in origin.seen] == [BOB.access_key_id, ALICE.access_key_id, ""]


async def test_an_unknown_identity_is_not_sent_unsigned() -> None:
    """Keys that the configuration does not hold are an error, not an anonymous request."""
    async with FakeOrigin() as origin:
        client = await client_for(origin_at(origin.endpoint))
        with pytest.raises(IdentityGone):
            await client.send(OriginIdentity("default", "gone"), "GET", "/b/k", "", ())
        await client.close()
        assert origin.count() == 0


async def test_replace_changes_keys_and_keeps_answers_that_are_under_way() -> None:
    """A reload takes effect without a restart, and answers in progress are completed."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", b"a" * 500 + b"b" * 500)
        gate = origin.inject(Hang(after=500)).gate
        client = await client_for(origin_at(origin.endpoint))
        response = await client.send(AS_ALICE, "GET", "/b/k", "", ())
        bob = {"access_key_id": BOB.access_key_id, "secret_access_key": BOB.secret_access_key}
        await client.replace([origin_at(origin.endpoint, **bob)], [])
        gate.open()
        assert len(await response.read(1000)) == 1000
        (await client.send(OriginIdentity("default", BOB.access_key_id), "HEAD", "/b/k", "", ())).release()
        with pytest.raises(IdentityGone):
            await client.send(AS_ALICE, "GET", "/b/k", "", ())
        await client.replace([origin_at(origin.endpoint, **bob)], [])
        await client.close()


async def test_nothing_is_remembered_of_keys_that_are_gone() -> None:
    """Tenants may change their keys as often as they like: a reload forgets those that it no longer has."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", b"body")
        client = await client_for(origin_at(origin.endpoint))
        (await client.send(AS_ALICE, "HEAD", "/b/k", "", ())).release()
        await client.replace([origin_at(origin.endpoint)], [])
        assert set(client._accepted) == {AS_ALICE}
        bob = {"access_key_id": BOB.access_key_id, "secret_access_key": BOB.secret_access_key}
        await client.replace([origin_at(origin.endpoint, **bob)], [])
        assert not client._accepted
        await client.close()


async def test_an_answer_before_the_body_was_read_is_returned() -> None:
    """S3 may refuse an upload early; the caller gets that answer, and the connection is not used again."""
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
    go_on = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"abc"
        await go_on.wait()
        yield b"def"

    async with RawServer([[refusal, EMPTY], [EMPTY]]) as server:
        client = await client_for(origin_at(server.endpoint))
        response = await client.send(AS_ALICE, "PUT", "/b/k", "", (), body=slow(), content_length=6)
        assert response.status == 403
        response.release()
        (await client.send(AS_ALICE, "GET", "/b/k", "", ())).release()
        assert server.connections == 2
        go_on.set()
        await client.close()


async def test_the_origin_comes_back_on_the_same_port() -> None:
    """After an outage the next request succeeds, without a reset of the client."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", b"x")
        client = await client_for(origin_at(origin.endpoint))
        ask: Callable[[], Awaitable[int]] = lambda: status_of(client)  # noqa: E731
        assert await ask() == 200
        await origin.stop()
        with pytest.raises(OriginUnavailable):
            await ask()
        await origin.start()
        origin.inject(Refuse())
        assert [await ask(), await ask()] == [503, 200]
        await client.close()

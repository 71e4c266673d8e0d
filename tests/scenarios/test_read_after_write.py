"""After a write through one worker, every worker serves the new object to the next reader."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rig.clients import Client, Got, client_of_each_worker, finish
from rig.gateways import Running, Settings
from rig.origin_faults import DieBeforeHeaders, ErrorIn200, Refuse
from rig.world import KIB, MIB, Origin, blob_path, content, eventually

_DELETE = "<Delete><Object><Key>{}</Key></Object><Object><Key>{}</Key></Object></Delete>"
_COMPLETE = (
    "<CompleteMultipartUpload>"
    "<Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part><Part><PartNumber>2</PartNumber><ETag>{}</ETag></Part>"
    "</CompleteMultipartUpload>"
)


@pytest.fixture(scope="module")
def settings(origin: Origin, tmp_path_factory) -> Settings:
    """Two workers on one store."""
    return Settings(origin.endpoint, tmp_path_factory.mktemp("cache"), workers=2)


@pytest.fixture
def workers(running: Running) -> Iterator[list[Client]]:
    """A connection to each worker."""
    with client_of_each_worker(running) as clients:
        assert len(clients) == 2
        yield list(clients.values())


def read_everywhere(workers: list[Client], path: str) -> list[Got]:
    """Read the object through each worker."""
    return [client.get(path) for client in workers]


def warm(workers: list[Client], origin: Origin, path: str, size: int = 110 * KIB) -> bytes:
    """An object that every worker has in memory."""
    body = origin.put(path, content(size, path))
    for _ in range(2):
        assert all(got.body == body for got in read_everywhere(workers, path))
    assert [got.cache for got in read_everywhere(workers, path)] == ["HIT", "HIT"]
    return body


def assert_everywhere(workers: list[Client], path: str, body: bytes) -> None:
    """Every worker gives these bytes, on GET and HEAD."""
    for client in workers:
        got = client.get(path)
        assert (got.status, got.body) == (200, body)
        assert client.ask("HEAD", path).headers["content-length"] == str(len(body))


def assert_gone_everywhere(workers: list[Client], path: str) -> None:
    """No worker has the object, on any verb."""
    for client in workers:
        assert [client.ask(method, path).status for method in ("GET", "HEAD")] == [404, 404]


def upload_parts(client: Client, path: str) -> tuple[str, str, bytes]:
    """Begin a multipart upload: its id, the document that completes it, and the bytes that it is to make."""
    answer = client.ask("POST", f"{path}?uploads=").body.decode()
    upload = answer.partition("<UploadId>")[2].partition("<")[0]
    bodies = [content(200 * KIB, (path, number)) for number in (1, 2)]
    etags = [
        client.ask("PUT", f"{path}?partNumber={number}&uploadId={upload}", body=body).headers["etag"]
        for number, body in enumerate(bodies, 1)
    ]
    return upload, _COMPLETE.format(*etags), b"".join(bodies)


def test_put(workers, origin):
    """Once a PUT is acknowledged by one worker, the next read through any worker gives the new bytes."""
    warm(workers, origin, "/bucket/put")
    new = content(50 * KIB, "new")
    assert workers[0].put("/bucket/put", new).status == 200
    assert_everywhere(workers[::-1], "/bucket/put", new)


def test_a_node_alone_announces_nothing(workers, origin, running):
    """Workers of a node share its generations, so with an embedded Redis, which no other node uses, nothing is announced."""
    warm(workers, origin, "/bucket/alone")
    new = content(1000, "alone")
    assert workers[1].put("/bucket/alone", new).status == 200
    assert_everywhere(workers, "/bucket/alone", new)
    assert running.metric("larder_invalidation_seconds_count") == 0


def test_create_after_not_found(workers, origin):
    """A missing object is not cached as missing: once created, every worker serves it."""
    origin.put("/bucket/other", b"makes the bucket")
    assert_gone_everywhere(workers, "/bucket/created")
    new = content(1000, "created")
    workers[0].put("/bucket/created", new)
    assert_everywhere(workers[::-1], "/bucket/created", new)


def test_delete(workers, origin):
    """A deleted object gets 404 at every worker."""
    warm(workers, origin, "/bucket/delete")
    assert workers[0].ask("DELETE", "/bucket/delete").status == 204
    assert_gone_everywhere(workers[::-1], "/bucket/delete")


def test_copy_onto_a_cached_object(workers, origin):
    """A copy changes its target, not its source."""
    warm(workers, origin, "/bucket/target")
    source = warm(workers, origin, "/bucket/source")
    assert workers[0].ask("PUT", "/bucket/target", {"x-amz-copy-source": "/bucket/source"}).status == 200
    assert_everywhere(workers[::-1], "/bucket/target", source)
    assert {got.cache for got in read_everywhere(workers, "/bucket/source")} == {"HIT"}


def test_copy_that_fails_in_its_body(workers, origin):
    """A copy that answers 200 and then an error leaves the old object, and the client gets the error."""
    old = warm(workers, origin, "/bucket/uncopied")
    warm(workers, origin, "/bucket/source")
    origin.inject(ErrorIn200(method="PUT", path="/bucket/uncopied"))
    answer = workers[0].ask("PUT", "/bucket/uncopied", {"x-amz-copy-source": "/bucket/source"})
    assert (answer.status, b"<Error>" in answer.body) == (200, True)
    assert_everywhere(workers[::-1], "/bucket/uncopied", old)


def test_multipart_completion(workers, origin):
    """Parts change nothing, their completion does."""
    path = "/bucket/multipart"
    old = warm(workers, origin, path)
    upload, document, new = upload_parts(workers[0], path)
    assert_everywhere(workers, path, old)
    assert workers[0].ask("POST", f"{path}?uploadId={upload}", body=document.encode()).status == 200
    assert_everywhere(workers[::-1], path, new)


def test_multipart_completion_that_fails_in_its_body(workers, origin):
    """A completion that answers 200 with an error leaves the old object; a second, successful one makes the new one visible."""
    path = "/bucket/uncompleted"
    old = warm(workers, origin, path)
    upload, document, new = upload_parts(workers[0], path)
    origin.inject(ErrorIn200(method="POST", path=path))
    answer = workers[0].ask("POST", f"{path}?uploadId={upload}", body=document.encode())
    assert (answer.status, b"<Error>" in answer.body) == (200, True)
    assert_everywhere(workers[::-1], path, old)
    assert workers[0].ask("POST", f"{path}?uploadId={upload}", body=document.encode()).status == 200
    assert_everywhere(workers[::-1], path, new)


def test_batch_delete(workers, origin):
    """A batch delete removes exactly its keys at every worker."""
    warm(workers, origin, "/bucket/batch-1")
    warm(workers, origin, "/bucket/batch-2")
    warm(workers, origin, "/bucket/batch-3")
    document = _DELETE.format("batch-1", "batch-2").encode()
    assert workers[0].ask("POST", "/bucket?delete=", body=document).status == 200
    assert_gone_everywhere(workers[::-1], "/bucket/batch-1")
    assert_gone_everywhere(workers[::-1], "/bucket/batch-2")
    assert {got.cache for got in read_everywhere(workers, "/bucket/batch-3")} == {"HIT"}


def test_a_write_that_is_refused(workers, origin):
    """A refused write leaves the object unchanged."""
    old = warm(workers, origin, "/bucket/refused")
    origin.inject(Refuse(method="PUT", path="/bucket/refused", status=403, code="AccessDenied"))
    assert workers[0].put("/bucket/refused", b"new").status == 403
    assert_everywhere(workers[::-1], "/bucket/refused", old)


def test_a_write_whose_answer_is_lost(workers, origin):
    """An origin that breaks off without an answer may have accepted the write, so the next read asks it."""
    path = "/bucket/unanswered"
    warm(workers, origin, path)
    origin.inject(DieBeforeHeaders(method="PUT", path=path, times=5))
    new = content(3000, "unanswered")
    assert workers[0].put(path, new).status == 503
    origin.heal()
    assert_everywhere(workers[::-1], path, new)


@pytest.mark.parametrize("writer", [0, 1], ids=["same-worker", "other-worker"])
@pytest.mark.parametrize(
    ("size", "after"),
    [(110 * KIB, -1), (110 * KIB, 50 * KIB), (3 * MIB, 50 * KIB), (3 * MIB, MIB + 50 * KIB)],
    ids=["before-the-head", "within-the-body", "within-the-first-block", "within-the-second-block"],
)
def test_a_write_races_a_fill(running, workers, origin, settings, writer, size, after):
    """Bytes that were asked of the origin before a write are not kept once the write is acknowledged.

    The reader who began before gets the old object or a broken connection; everybody after gets the new one,
    without waiting for the read that began before.
    """
    path = f"/bucket/race-{writer}-{size}-{after}"
    old, new = origin.put(path, content(size, (path, "old"))), content(size, (path, "new"))
    hang = origin.hang(path, after)
    with client_of_each_worker(running) as early:
        reader = next(iter(early.values()))
        reader.send("GET", path)
        hang.gate.arrival.result(30)
        response = reader.begin() if after >= 0 else None
        before = response.read(1) if response is not None else b""
        assert workers[writer].put(path, new).status == 200
        assert_everywhere(workers, path, new)
        hang.gate.open()
        got = reader.answer() if response is None else finish(response, before)
    assert not got.whole or got.body in ((old, new) if after < 0 else (old,))
    for _ in range(2):
        assert_everywhere(workers, path, new)
    stale = [blob_path(settings.cache, old[at : at + MIB]) for at in range(0, size, MIB)]
    eventually(lambda: [blob for blob in stale if blob.exists()], lambda left: not left, "the end of the old bytes")

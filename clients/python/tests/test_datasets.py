"""Registering, listing and removing datasets."""

import hashlib
import json
import pickle

import pytest
from fake_gateway import ID, FakeBatchGateway, Store, problem, serving

import larder

KEY = larder.Credentials("key", "secret")
AT_ONCE = larder.Retry(attempts=3, base=0)
DOCUMENT = {
    "name": "digits", "id": ID, "items": 1797, "bytes": 115008, "caching": "part",
    "plan": 1, "resident": 12, "registered_at": "2026-01-01T00:00:00Z",
}  # fmt: skip
INFO = larder.DatasetInfo("digits", ID, 1797, 115008, "part", plan=1, resident=12)


@pytest.fixture
def server():
    """A gateway that answers every request about datasets with ``DOCUMENT``."""
    with serving(FakeBatchGateway(Store({}))) as server:
        server.other = lambda handler, asked: handler.send_json(DOCUMENT)
        yield server


@pytest.fixture
def client(server):
    """A client of that gateway."""
    return larder.Client(server.endpoint, credentials=KEY, retry=AT_ONCE)


@pytest.fixture
def file(tmp_path):
    """Returns the file to upload; it need not be valid, since the gateway, not the client, reads Parquet."""
    path = tmp_path / "digits.parquet"
    path.write_bytes(b"PAR1" * 1000)
    return path


def test_register_uploads_a_file(client, server, file):
    """The file's bytes are sent under their SHA-256, and the gateway's document comes back as a value."""
    assert client.register("digits", file, caching="part") == INFO
    (asked,) = server.asked
    assert (asked.method, asked.path, asked.query) == ("PUT", "/-/v1/datasets/digits", {"caching": "part"})
    assert asked.body == file.read_bytes()
    assert asked.headers["x-amz-content-sha256"] == hashlib.sha256(asked.body).hexdigest()


def test_register_by_address(client, server):
    """An S3 address is named, not fetched."""
    client.register("digits", "s3://bucket/a key.parquet")
    (asked,) = server.asked
    assert json.loads(asked.body) == {"source": "s3://bucket/a key.parquet"}
    assert (asked.headers["Content-Type"], asked.query) == ("application/json", {"caching": "auto"})


def test_a_repeated_upload_starts_at_the_beginning(client, server, file):
    """Each attempt sends the whole file."""
    server.faults = [problem(503, "ServiceUnavailable"), lambda handler, asked: handler.reset()]
    client.register("digits", file)
    assert [asked.body for asked in server.asked] == [file.read_bytes()] * 3


def test_a_file_that_is_not_there(client, tmp_path):
    """The error names the file."""
    with pytest.raises(larder.DigestFileError, match=r"none\.parquet cannot be read: No such file"):
        client.register("digits", tmp_path / "none.parquet")


@pytest.mark.parametrize("code", ["InvalidDigestFile", "TooLarge", "AccessDenied"])
def test_a_refused_file(client, server, file, code):
    """The gateway's explanation reaches the caller, once."""
    server.faults = [problem(400, code, "column digest is missing")]
    with pytest.raises(larder.RequestRefused, match="column digest is missing") as caught:
        client.register("digits", file)
    assert (caught.value.code, len(server.asked)) == (code, 1)


@pytest.mark.parametrize("name", ["", "a/b", "ü", "x" * 129, "ab" * 32, "..", "."])
def test_names_that_are_not_allowed(client, file, name):
    """An invalid name raises before anything is sent."""
    with pytest.raises(ValueError, match="name"):
        client.register(name, file)


def test_dataset_by_name_and_id(client, server):
    """Name and id find the same dataset."""
    assert client.dataset("digits") == client.dataset(ID) == INFO
    assert [asked.path for asked in server.asked] == ["/-/v1/datasets/digits", f"/-/v1/datasets/{ID}"]


def test_an_unknown_dataset(client, server):
    """An unknown dataset raises a specific error."""
    server.faults = [problem(404, "UnknownDataset", "register it again")]
    with pytest.raises(larder.UnknownDataset, match="register it again"):
        client.dataset("digits")


def test_list(client, server):
    """All datasets of the tenant."""
    server.other = lambda handler, asked: handler.send_json({"datasets": [DOCUMENT, {**DOCUMENT, "name": "other"}]})
    assert [info.name for info in client.datasets()] == ["digits", "other"]


def test_remove(client, server):
    """A removal has no answer but its success."""
    server.other = lambda handler, asked: handler.send(204, Content_Length="0")
    assert client.remove("digits") is None
    assert server.asked[0].method == "DELETE"


def test_items_come_in_pages(client, server):
    """More items than fit into one answer are requested page by page."""
    rows = [{"index": at, "bucket": "b", "key": f"k {at}", "offset": None, "length": 3} for at in range(12_000)]

    def page(handler, asked):
        start, count = int(asked.query["start"]), int(asked.query["count"])
        handler.send_json({"items": rows[start : start + min(count, 10_000)]})

    server.other = page
    found = client.items("digits")
    assert (len(found), found[11_999]) == (12_000, larder.ItemLocation(11_999, "b", "k 11999", None, 3))
    assert [item.index for item in client.items("digits", 5, 2)] == [5, 6]
    assert [asked.query["start"] for asked in server.asked] == ["0", "10000", "5"]
    each = client.each_item("digits")
    assert (len(server.asked), next(each).index, len(server.asked)) == (3, 0, 4)


@pytest.mark.parametrize("chunks", [{"partitions": 1, "units": 1}, {"partitions": 10, "units": 40}, None])
def test_the_chunks_of_gateways_say_nothing_of_an_order(client, server, chunks):
    """Rule: a dataset is the same from every gateway, so that ranks at gateways of several versions have one order."""
    server.other = lambda handler, asked: handler.send_json({**DOCUMENT, "chunks": chunks})
    assert client.dataset("digits") == INFO


@pytest.mark.parametrize(
    "damage",
    [
        {"id": "short"},
        {"items": "many"},
        {"items": -1},
        {"items": True},
        {"plan": None},
    ],
)
def test_documents_that_are_none(client, server, damage):
    """A field that is missing or of another kind is named."""
    server.other = lambda handler, asked: handler.send_json({**DOCUMENT, **damage})
    with pytest.raises(larder.UnexpectedAnswer, match="the dataset's"):
        client.dataset("digits")


@pytest.mark.parametrize("body", [b"[]", b"<html>", b"", b'{"datasets": 3}', b'{"datasets": [3]}'])
def test_answers_that_are_none(client, server, body):
    """A success of another kind of server raises an error."""
    server.other = lambda handler, asked: handler.send(200, body)
    with pytest.raises(larder.UnexpectedAnswer):
        client.datasets()


def test_no_credentials(server, monkeypatch, tmp_path):
    """A ping needs no key; listing datasets does, and the error names the sources that were tried."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("larder.http.credentials._botocore", lambda profile, region: None)
    client = larder.Client(server.endpoint)
    assert client.ping()["ready"]
    with pytest.raises(larder.CredentialsMissing):
        client.datasets()


def test_a_gateway_that_is_gone(client, server, file):
    """All calls agree on the error."""
    server.faults = [lambda handler, asked: handler.reset()] * 6
    for call in (client.datasets, lambda: client.register("digits", file)):
        with pytest.raises(larder.GatewayUnavailable, match="3 times"):
            call()


def test_a_used_client_can_be_pickled(client):
    """Connections stay behind."""
    client.dataset("digits")
    assert pickle.loads(pickle.dumps(client)).dataset("digits") == INFO

"""Builds from third-party stores and through a gateway, and registration of the results."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from larder import cli, digest
from larder.http.credentials import Credentials
from rig.gateways import Running, Settings, gateway, s3_client
from tests.digest.conftest import CREDENTIALS, Store

AWKWARD = ["plain", "a b", "a+b", "a%2Fb", "ü/€/\U0001f600", "dots/./x", "q?x=1&y#z", "k" * 900]


def check(endpoint: str, credentials: Credentials, file: Any, **options: Any) -> digest.Report:
    """Fill a new bucket, build twice, and compare with the stored objects."""
    bucket = f"digest-{uuid.uuid4().hex[:12]}"
    s3 = s3_client(endpoint, credentials.access_key_id, credentials.secret_access_key)
    s3.create_bucket(Bucket=bucket)
    for key in AWKWARD:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode() * 50, **options)
    report = digest.build(f"s3://{bucket}/", file, endpoint=endpoint, credentials=credentials)
    found = digest.read(file)
    assert [found.location(index).key for index in range(len(found))] == sorted(AWKWARD, key=str.encode)
    for index in range(len(found)):
        assert found.digest(index) == hashlib.sha256(found.location(index).key.encode() * 50).digest()
    assert digest.build(f"s3://{bucket}/", file, endpoint=endpoint, credentials=credentials).unchanged == len(AWKWARD)
    return report


def test_moto(moto, tmp_path):
    """Keys of every kind, read and recognized as unchanged."""
    check(moto, Credentials("any", "thing"), tmp_path / "d")


def test_moto_with_checksums(moto, tmp_path):
    """SHA-256 that came with the uploads is taken over."""
    report = check(moto, Credentials("any", "thing"), tmp_path / "d", ChecksumAlgorithm="SHA256")
    assert report.supplied == len(AWKWARD)


def test_radosgw(radosgw, tmp_path):
    """A store that checks every signature."""
    _, key, secret = radosgw.users[0]
    check(radosgw.endpoint, Credentials(key, secret), tmp_path / "d")


@pytest.fixture
def running(store: Store, tmp_path) -> Iterator[Running]:
    """A gateway in front of the fake origin."""
    with gateway(Settings(store.s3.endpoint, tmp_path / "cache"), tmp_path / "home") as started:
        yield started


@pytest.fixture
def gateway_keys(running: Running, monkeypatch) -> None:
    """The gateway's address and keys in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "GWA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "gateway-secret-a")
    monkeypatch.setenv("LARDER_ENDPOINT", running.endpoint)


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """The JSON that the command printed."""
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("gateway_keys")
def test_a_build_through_a_gateway_is_that_of_the_store(store, capsys):
    """A build through a gateway gives the same bytes, and cached objects are not read from the origin again."""
    for key in AWKWARD:
        store.put(key, key.encode() * 100)
    store.build()
    direct = store.file.read_bytes()
    store.file.unlink()
    for _ in range(2):
        assert cli.main(["digest", "build", "s3://b/", "-o", str(store.file), "--fresh", "--json"]) == 0
        assert told(capsys)["objects_read"] == len(AWKWARD)
        assert store.file.read_bytes() == direct
    assert set(store.reads().values()) == {2}  # one of the direct build, one of the gateway's


@pytest.mark.usefixtures("gateway_keys")
def test_datasets_are_registered_listed_shown_and_removed(store, capsys):
    """By upload and by address; as tables and as JSON."""
    for number in range(5):
        store.put(f"k{number}", b"%d" % number)
    store.build()
    store.s3.put("lists", "d", store.file.read_bytes())
    known = digest.read(store.file).id
    assert cli.main(["dataset", "register", "uploaded", str(store.file), "--caching", "none", "--json"]) == 0
    answer = told(capsys)
    assert (answer["name"], answer["id"], answer["items"], answer["caching"]) == ("uploaded", known, 5, "none")
    assert cli.main(["dataset", "register", "fetched", "s3://lists/d"]) == 0
    assert known in capsys.readouterr().out
    assert cli.main(["dataset", "list", "--json"]) == 0
    assert {info["name"] for info in told(capsys)["datasets"]} == {"uploaded", "fetched"}
    assert cli.main(["dataset", "list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert cli.main(["dataset", "remove", "uploaded"]) == 0
    assert cli.main(["dataset", "remove", "fetched", "--json"]) == 0
    capsys.readouterr()
    assert cli.main(["dataset", "list"]) == 0
    assert capsys.readouterr().out == "no datasets\n"


@pytest.mark.usefixtures("gateway_keys")
def test_an_unknown_dataset_exits_with_1(capsys):
    """The gateway's own words, on standard error."""
    assert cli.main(["dataset", "show", "nothing"]) == 1
    assert "nothing" in capsys.readouterr().err


@pytest.mark.usefixtures("gateway_keys")
def test_a_name_that_is_none_exits_with_2(capsys):
    """An invalid name exits with 2, and the message describes valid names."""
    assert cli.main(["dataset", "show", "a/b"]) == 2
    assert "A-Z a-z 0-9" in capsys.readouterr().err


def test_keys_of_another_are_refused_with_the_reason(running, store, monkeypatch, capsys):
    """A wrong key is reported as such, not as a failure of the network."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "GWA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store.put("k", b"1")
    words = ["digest", "build", "s3://b/", "-o", str(store.file), "--endpoint", running.endpoint]
    assert cli.main(words) == 1
    assert "SignatureDoesNotMatch" in capsys.readouterr().err


def test_credentials_can_be_given(store):
    """A callable that renews them serves as well as a fixed key."""
    store.put("k", b"1")
    report = digest.build("s3://b/", store.file, endpoint=store.s3.endpoint, credentials=lambda: CREDENTIALS)
    assert report.items == 1

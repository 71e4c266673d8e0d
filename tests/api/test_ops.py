"""Addresses under /-/: their OpenAPI description compared with a running gateway, and their answers to strangers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from typing import Any

import pytest

from gateway.admin.app import AdminApp
from gateway.admin.http.tokens import Tokens
from gateway.api.ops import PATHS
from gateway.base.config_catalog import AdminSettings
from gateway.operate.features import FEATURES
from gateway.wiring.endpoints import api_of
from rig.gateways import Running, Settings, gateway
from rig.origin import OriginThread
from tests.described import described_in, schema_of, try_operation


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Returns a gateway that has served hits, misses, refusals and writes under confidential names."""
    home = tmp_path_factory.mktemp("ops")
    with OriginThread() as origin, gateway(Settings(origin.endpoint, home / "cache"), home) as started:
        origin.put("telltale-bucket", "telltale-key", b"x")
        client = started.client()
        client.get_object(Bucket="telltale-bucket", Key="telltale-key")["Body"].read()
        client.put_object(Bucket="telltale-bucket", Key="telltale-other", Body=b"y")
        with pytest.raises(client.exceptions.ClientError):
            started.client("telltale-stranger", "x").get_object(Bucket="telltale-bucket", Key="telltale-key")
        yield started


def fetch(running: Running, path: str, method: str = "GET") -> tuple[int, Message, str]:
    """Status, header and body of an answer; redirects are not followed."""
    request = urllib.request.Request(running.endpoint + path, method=method)
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


@pytest.fixture(scope="module")
def schema() -> Any:
    """The description, as schemathesis has it."""
    return schema_of(api_of(AdminApp(Tokens(AdminSettings()), None, FEATURES)).openapi())


@pytest.mark.hypothesis  # of `make fuzz` too
@pytest.mark.parametrize(("method", "path"), described_in(PATHS))
def test_the_description_is_true(schema: Any, running: Running, method: str, path: str) -> None:
    """Rule: every address in /-/openapi.json answers with the statuses described there."""
    try_operation(schema, method, path, 10, lambda case: case.call_and_validate(base_url=f"{running.endpoint}/-"))


def test_the_description_names_the_addresses_as_they_are(running: Running) -> None:
    """Rule: a tool that is given the document finds the addresses: they are relative to /-."""
    document = json.loads(fetch(running, "/-/openapi.json")[2])
    assert document["servers"] == [{"url": "/-"}]
    assert fetch(running, document["servers"][0]["url"] + "/healthz")[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/-/nothing", "/-/healthz/", "/-/../healthz", "/-/%2e%2e/bucket/key", "/-//healthz", "/-/docs/"],
)
def test_unknown_addresses(running: Running, path: str) -> None:
    """Rule: 404 with a problem document (RFC 9457), and never a redirect out of /-."""
    status, headers, body = fetch(running, path)
    assert (status, headers["content-type"]) == (404, "application/problem+json")
    assert (json.loads(body)["status"], json.loads(body)["code"]) == (404, "NotFound")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_methods_that_an_address_does_not_have(running: Running, method: str) -> None:
    """Rule: 405 with a problem document and the methods there are."""
    status, headers, body = fetch(running, "/-/healthz", method)
    assert (status, headers["content-type"], headers["allow"]) == (405, "application/problem+json", "GET")
    assert json.loads(body)["status"] == 405


@pytest.mark.parametrize("path", ["/-/metrics", "/-/readyz", "/-/healthz", "/-/openapi.json"])
def test_strangers_learn_no_names(running: Running, path: str) -> None:
    """Rule: answers without a signature contain no bucket, key, access key, tenant or secret."""
    status, _, body = fetch(running, path)
    assert status == 200
    for name in ("telltale", "GWA", "gateway-secret", "origin-key", "origin-secret", str(running.config.parent)):
        assert name not in body

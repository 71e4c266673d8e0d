"""schemathesis calls everything that /-/openapi.json describes; a running gateway's answers match the description."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from gateway.admin.app import AdminApp
from gateway.admin.endpoints import routers
from gateway.admin.http.roles import PREFIX
from gateway.admin.http.tokens import Tokens
from gateway.api.v1.openapi import DATA_PATHS
from gateway.base.config_catalog import AdminSettings
from gateway.operate.features import FEATURES
from gateway.wiring.endpoints import ROUTERS, api_of
from rig.gateways import Running, Settings, gateway
from rig.origin import OriginThread
from rig.signed_requests import ClientSigner
from tests.admin.operations_world import ADMIN, TOKEN
from tests.described import described_in, operations_of, schema_of, try_operation

OF_ADMIN = [each for router in routers(FEATURES) for each in operations_of(router.routes, PREFIX)]
OF_CLIENTS = [each for router in ROUTERS for each in operations_of(router.routes)] + described_in(DATA_PATHS)
FEW = 5


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The admin API's OpenAPI document."""
    return api_of(AdminApp(Tokens(AdminSettings()), None, FEATURES)).openapi()


@pytest.fixture(scope="module")
def schema(document: dict[str, Any]) -> Any:
    """The same, as schemathesis has it."""
    return schema_of(document)


@pytest.fixture(scope="module")
def checks(schema: Any) -> list[Any]:
    """Checks of each answer. There is no check that a valid request is accepted.

    A schema cannot express whether a node, key or dataset exists.
    """
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        negative_data_rejection,
        response_headers_conformance,
        response_schema_conformance,
        status_code_conformance,
        unsupported_method,
    )

    return [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
        negative_data_rejection,
        unsupported_method,
    ]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with its admin addresses open."""
    home = tmp_path_factory.mktemp("described")
    with OriginThread() as origin, gateway(Settings(origin.endpoint, home / "cache", extra=ADMIN), home) as started:
        yield started


class Signed(requests.auth.AuthBase):
    """Signs each request when it is sent."""

    def __call__(self, prepared: requests.PreparedRequest) -> requests.PreparedRequest:
        """Put the signature's headers in."""
        body = prepared.body or b""
        content = body.encode() if isinstance(body, str) else body
        assert prepared.method is not None
        assert prepared.url is not None
        signed = ClientSigner("GWA", "gateway-secret-a").header(prepared.method, prepared.url, {}, body=content)
        prepared.headers.update({name.decode(): value.decode() for name, value in signed.headers})
        return prepared


@pytest.mark.hypothesis  # of `make fuzz` too
@pytest.mark.parametrize(("method", "path"), OF_ADMIN)
def test_the_admin_addresses_are_as_described(
    schema: Any, running: Running, checks: list[Any], method: str, path: str
) -> None:
    """Rule: an admin address answers any request as its description says."""
    from schemathesis.specs.openapi.checks import ignored_auth

    def holds(case: Any) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        case.headers.update(headers)  # a case without the token is sent with it: it is not invalid for that
        case.call_and_validate(base_url=f"{running.endpoint}/-", headers=headers, checks=[*checks, ignored_auth])

    try_operation(schema, method, path, FEW, holds)


@pytest.mark.hypothesis  # of `make fuzz` too
@pytest.mark.parametrize(("method", "path"), OF_CLIENTS)
def test_the_addresses_of_clients_are_as_described(
    schema: Any, running: Running, checks: list[Any], method: str, path: str
) -> None:
    """Rule: a client address answers any request as its description says."""

    def holds(case: Any) -> None:
        case.call_and_validate(base_url=f"{running.endpoint}/-", auth=Signed(), checks=checks)

    try_operation(schema, method, path, FEW, holds)


def test_every_operation_is_tried(document: dict[str, Any]) -> None:
    """Rule: all that is described below /-/admin and /-/v1 is tried."""
    described = [each for each in described_in(document["paths"]) if each[1].startswith(("/admin/", "/v1/"))]
    assert sorted([*OF_ADMIN, *OF_CLIENTS]) == sorted(described)


def test_the_description_is_the_gateways_own(document: dict[str, Any], running: Running) -> None:
    """Rule: the tested description is the one that a running gateway serves."""
    assert requests.get(f"{running.endpoint}/-/openapi.json", timeout=30).json() == json.loads(json.dumps(document))


def test_every_schema_has_examples(document: dict[str, Any]) -> None:
    """Rule: every field of every admin schema has an example, or is made of schemas that have."""
    admin = json.dumps([told for path, told in document["paths"].items() if path.startswith("/admin/")])
    without = [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        if f'"#/components/schemas/{name}"' in admin
        for field, told in schema.get("properties", {}).items()
        if not _has_example(told)
    ]
    assert without == []


def _has_example(told: Any) -> bool:
    if told.get("examples") or "const" in told or "enum" in told or "default" in told or "$ref" in told:
        return True
    parts = [*told.get("anyOf", ()), *told.get("allOf", ()), *([told["items"]] if "items" in told else ())]
    parts += [told["additionalProperties"]] if isinstance(told.get("additionalProperties"), dict) else []
    return any(_has_example(part) for part in parts)

"""Errors of /-/v1 show no internals."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import pytest
from fastapi import APIRouter

from gateway.edge.endpoints import include, new_app
from gateway.edge.problems import problem_of
from gateway.model.datasets import ApiError
from gateway.model.errors import ClientGone, OriginUnavailable


async def test_a_client_that_leaves_while_it_is_refused_is_no_mistake_of_ours() -> None:
    """Rule: a request whose client disconnects ends as such and is not logged as an error."""
    app = new_app("Refusals", logging.getLogger(__name__))
    router = APIRouter()

    @router.get("/v1/refused")
    async def refused() -> None:
        raise ApiError("InvalidRequest", "no")

    include(app, router)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            raise ClientGone("the client is gone")

    scope = {
        "type": "http", "method": "GET", "path": "/v1/refused", "raw_path": b"/v1/refused", "query_string": b"", "headers": [],
        "scheme": "http", "http_version": "1.1", "server": ("127.0.0.1", 9000), "client": ("127.0.0.1", 1),
    }  # fmt: skip
    with pytest.raises(ClientGone):
        await app(scope, receive, send)


def test_what_is_missing_is_not_always_the_origin() -> None:
    """Rule: the title of a 503 does not name the origin; if the origin is the cause, the detail does."""
    for detail in ("Redis cannot be reached; continue, and try again.", ""):
        assert "origin" not in problem_of(ApiError("ServiceUnavailable", detail)).title
    assert "origin" in problem_of(OriginUnavailable("refused")).detail

"""Applications of FastAPI share endpoints that are built once."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, routing
from starlette.datastructures import State

from gateway.edge.endpoints import build, include, new_app, of_state, share

router = APIRouter()


@router.get("/name")
async def _name(name: Annotated[str, Depends(of_state("name"))]) -> str:
    return name


@router.delete("/name")
async def _remove() -> None:
    pass


def _bare(name: str) -> FastAPI:
    return new_app("A test", logging.getLogger("larder.test"), State({"name": name}))


def _built() -> FastAPI:
    app = _bare("built")
    include(app, router, "/of")
    return build(app)


async def _asked(app: FastAPI, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        return await client.request(method, "/of/name")


async def test_a_request_builds_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: dependencies of a route are resolved before the first request, because resolving blocks the event loop."""
    app = share(_bare("first"), _built())

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a route is built")

    monkeypatch.setattr(routing, "get_dependant", refuse)
    assert (await _asked(app)).json() == "first"


async def test_applications_that_share_endpoints_have_their_own_states() -> None:
    """Rule: endpoints depend on the application that is asked, and those of one are built no second time."""
    built = _built()
    apps = [share(_bare(name), built) for name in ("first", "second")]
    assert [(await _asked(app)).json() for app in apps] == ["first", "second"]


async def test_shared_endpoints_tell_their_methods() -> None:
    """Rule: a method that an address does not have is answered with those of all its routes."""
    answer = await _asked(share(_bare("first"), _built()), "POST")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET")

"""Requests to the FastAPI endpoints under ``/-/v1``: the caller is verified first, then parameters and body are checked.

Bodies are read and parsed here and not by FastAPI, because their bytes are signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ValidationError

from gateway.api.v1.identity import Caller
from gateway.edge.endpoints import known_parameters
from gateway.edge.problems import invalid_request, refusals
from gateway.model.datasets import ApiError
from gateway.server.received import request_body, whole_body

LARGEST_JSON = 64 * 1024
"""Bytes of the largest JSON body."""
_FORBIDDEN = "AccessDenied, SignatureDoesNotMatch, InvalidAccessKeyId, RequestTimeTooSkewed"
T = TypeVar("T", bound=BaseModel)


async def _caller(request: Request) -> Caller:
    caller: Caller = request.app.state.identities.admit(request.scope)
    return caller


Asking = Annotated[Caller, Depends(_caller)]
"""The verified caller."""


async def _without_body(request: Request, caller: Asking) -> None:
    async for _ in request_body(request.receive):
        raise ApiError("InvalidRequest", f"A {request.method} of this address takes no body.")
    caller.confirm_body(b"")


WITHOUT_BODY = [Depends(_without_body)]
"""Dependencies of an endpoint that refuses bodies."""


def v1_router(tag: str, meanings: Mapping[int, str]) -> APIRouter:
    """A router of addresses under ``/-/v1``; ``meanings`` lists the codes of its refusals by status."""
    return APIRouter(
        prefix="/v1",
        tags=[tag],
        responses=refusals({403: _FORBIDDEN, **meanings}),
        dependencies=[Depends(_caller), Depends(known_parameters)],
    )


async def parsed(request: Request, caller: Caller, kind: type[T]) -> T:
    """The JSON body of a request.

    Raises:
        ApiError: TooLarge; InvalidRequest, naming the field.
        S3Error: the caller signed another body.
    """
    text = await whole_body(request.receive, LARGEST_JSON)
    caller.confirm_body(text)
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise invalid_request(error.errors()) from None


def body_of(media_type: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The OpenAPI description of a body that FastAPI does not see."""
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}

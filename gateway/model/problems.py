"""Problem documents (RFC 9457): how every error under ``/-/`` is told, with a ``code`` that programs can rely on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.model.datasets import ApiError

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as it is told: status, document and further headers."""

    status: int
    title: str
    code: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The document."""
        own = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        return json.dumps({**self.extra, **own}).encode()


def told(error: ApiError) -> Problem:
    """A refusal as it is told."""
    return Problem(error.status, error.title, error.code, error.detail, error.headers, error.extra)


def invalid_request(mistakes: Iterable[Mapping[str, Any]]) -> ApiError:
    """The refusal of a request in which pydantic found mistakes."""
    return ApiError("InvalidRequest", "; ".join(map(_described, mistakes)))


def _described(error: Mapping[str, Any]) -> str:
    """One mistake of a request: where, and what is wanted there; never the value, nor where pydantic explains itself."""
    if error["type"] == "json_invalid" and len(error["loc"]) == 2:
        return f"body: is not JSON, from character {error['loc'][1]} on"
    place = [str(part) for part in error["loc"] if part not in ("query", "path", "body")]
    unknown = "there is no such field" if error["type"] == "extra_forbidden" else str(error["msg"])
    return f"{'.'.join(place) or 'body'}: {unknown.removeprefix('Value error, ')}"

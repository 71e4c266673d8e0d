"""The dashboard at ``/-/``, the OpenAPI page at ``/-/docs`` and the runbook: static files, with a Content-Security-Policy.

The pages contain no data: they fetch it from ``/-/admin`` with a token, so they need no authorization. Scripts and styles may
come from this gateway only. Scripts cannot turn text into HTML (``require-trusted-types-for``), so names chosen by users stay
text. Swagger UI needs that and inline styles; both are allowed on its own page only.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from gateway.model.datasets import ApiError

STATIC = Path(__file__).resolve().parent / "static"
SWAGGER_UI = "swagger-ui-5.35.0"
"""The folder of the vendored files; the version in the address lets browsers cache them permanently."""

_TYPES = MappingProxyType(
    {
        ".css": "text/css; charset=utf-8",
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
        ".txt": "text/plain; charset=utf-8",
    }
)
_EVERYWHERE = "default-src 'none'; script-src 'self'; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
_PAGE_POLICY = (
    f"{_EVERYWHERE}; style-src 'self'; img-src 'self'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# Swagger UI writes style elements, and its icons are data URLs.
_DOCS_POLICY = f"{_EVERYWHERE}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; form-action 'none'"
_FILE_POLICY = "default-src 'none'; frame-ancestors 'none'"

_FOR_A_YEAR = "public, max-age=31536000, immutable"
_ASK_FIRST = "no-cache"
_ALWAYS = MappingProxyType(
    {
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
    }
)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file to send."""

    body: bytes
    media_type: str
    etag: str


router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
async def dashboard(request: Request) -> Response:
    """The dashboard."""
    return await _page(request, "dashboard/index.html", _PAGE_POLICY)


@router.api_route("/docs", methods=["GET", "HEAD"])
async def docs(request: Request) -> Response:
    """The OpenAPI page."""
    return await _page(request, "docs/index.html", _DOCS_POLICY)


@router.api_route("/runbook", methods=["GET", "HEAD"])
async def runbook(request: Request) -> Response:
    """The runbook; a problem links to its entry."""
    return await _page(request, "runbook/index.html", _PAGE_POLICY)


@router.api_route("/openapi.json", methods=["GET", "HEAD"])
async def openapi(request: Request) -> Response:
    """The OpenAPI document. It is made at the first request, which takes a second or two, in a thread."""
    return JSONResponse(await asyncio.to_thread(request.app.openapi))


@router.api_route("/static/{name:path}", methods=["GET", "HEAD"])
async def static(request: Request, name: str) -> Response:
    """A file of the pages."""
    if name not in _names():
        raise ApiError("NotFound", "Unknown file.")
    kept = _FOR_A_YEAR if name.startswith(f"{SWAGGER_UI}/") else _ASK_FIRST
    return await _page(request, name, _FILE_POLICY, kept)


async def _page(request: Request, name: str, policy: str, kept: str = _ASK_FIRST) -> Response:
    asset = await asyncio.to_thread(_load, name)
    headers = {**_ALWAYS, "content-security-policy": policy, "cache-control": kept, "etag": asset.etag}
    if _has(request.headers, asset.etag):
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.media_type, headers=headers)


def _has(headers: Mapping[str, str], etag: str) -> bool:
    """Whether the browser has this version (RFC 9110, section 13.1.2; weak comparison, as a proxy may have compressed it)."""
    return etag in [tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")]


@cache
def _names() -> frozenset[str]:
    """Names of all files. Paths are looked up here instead of resolved, so no address leads out of the folder."""
    return frozenset(
        path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file() and path.suffix in _TYPES
    )


@cache
def _load(name: str) -> Asset:
    body = (STATIC / name).read_bytes()
    digest = hashlib.sha256(body).hexdigest()[:32]
    return Asset(body, _TYPES[Path(name).suffix], f'"{digest}"')

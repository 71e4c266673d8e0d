"""One OpenAPI document for everything under ``/-``: ``/-/v1`` and the health endpoints are one application, ``/-/admin`` another.

If both have a schema of one name with different contents, the admin's is renamed. Tags and operation ids of the admin endpoints
have a prefix, because jobs and datasets exist on both sides, for jobs and for operators.

Client generators turn titles and operation ids into names, and statuses into types. So a schema's title is its name, an operation
id is the name of its function, and statuses that an endpoint never answers are left out: FastAPI's 422 (``edge/problems.py``),
and statuses of other endpoints of its router.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from fastapi import FastAPI

Document = dict[str, Any]

ABOUT = """\
The HTTP API of this gateway, except S3 itself.

Addresses under `/-/admin` take the header `Authorization: Bearer TOKEN` with `admin.token`, for GET also `admin.read_token`,
or a named token: press *Authorize* and give the token to try them here. Those under `/-/v1` take requests signed like S3's
(Signature Version 4, service `s3`) with an access key of the gateway, which the Python client does; a page cannot. Health,
metrics and this document take neither.

Errors are problem documents (RFC 9457) with a `code` for programs and a `detail` for people."""

_PREFIX = "admin: "
_TAGS = {
    "admin: overview": "The data of the dashboard",
    "admin: tenants": "Owners of access keys",
    "admin: credentials": "Access keys: created, rotated, revoked at once on every gateway",
    "admin: tokens": "Admin tokens with names and roles: created, revoked at once on every gateway",
    "admin: origins": "The object stores behind the gateway",
    "admin: rules": "What is cached, for how long, and for whom",
    "admin: nodes": "The machines of the fleet; drain them",
    "admin: datasets": "The space of each dataset, and why; overrides",
    "admin: jobs": "Training jobs and what they gain",
    "admin: pipelines": "Input pipelines of jobs, what they store, and why; overrides",
    "admin: results": "Stored results of pipelines, and the space they get; overrides",
    "admin: streams": "Access patterns of plain reads, and the space they get",
    "admin: plan": "The manager's plan and its inputs",
    "admin: warm-ups": "Load data before it is read; progress, cancel, resume",
    "admin: profiles": "Recorded reads of a job, replayed as a warm-up",
    "admin: purge": "Drop cached objects by prefix; the origin is unchanged",
    "admin: verifications": "Compare cached files with their digests",
    "admin: explain": "Why a read is not a hit",
    "admin: problems": "Current problems and their remedies",
    "admin: audit": "Changes: caller, time, values before and after",
    "operations": "Health, readiness, metrics; no token",
    "datasets": "Register and look up datasets; signed",
    "batches": "Many items in one request; signed",
    "blobs": "Bytes by their SHA-256; signed",
    "jobs": "Training jobs: registration, heartbeats, directives; signed",
    "fleet": "Members of the fleet; signed",
}
_SCHEMAS = "#/components/schemas/"
_PAGE, _PAGE_NAME = re.compile("^Page_(.*)_$"), r"\1Page"
_OF_LISTS = {"limit", "cursor"}
_READS = ("get", "head")
_NEVER_SENT = ("HTTPValidationError", "ValidationError")


def describe_all(app: FastAPI, admin: Callable[[], FastAPI], *more: Callable[[Mapping[str, Any]], Document]) -> None:
    """Make ``app`` serve the document of both.

    Args:
        app: the application.
        admin: called for the first document.
        more: adds to the document of ``app`` what FastAPI cannot derive.
    """
    own: Callable[[], Document] = app.openapi

    @cache
    def openapi() -> Document:
        document = own()
        for addition in more:
            document = addition(document)
        return merged(document, admin().openapi())

    app.openapi = openapi  # type: ignore[method-assign]


def merged(own: Mapping[str, Any], admin: Mapping[str, Any]) -> Document:
    """Both documents merged into a new one."""
    mine, theirs = _schemas(own), _schemas(admin)
    renamed = {name: _PAGE.sub(_PAGE_NAME, name) for name in theirs}
    renamed |= {name: f"Admin{name}" for name in theirs if name in mine and mine[name] != theirs[name]}
    moved = _with_references(admin, {f"{_SCHEMAS}{old}": f"{_SCHEMAS}{new}" for old, new in renamed.items()})
    schemas = {renamed.get(name, name): schema for name, schema in _schemas(moved).items()}
    paths = {**own["paths"], **{path: _tagged(item) for path, item in moved["paths"].items()}}
    paths = {path: _answered(path, item) for path, item in paths.items()}
    components = {
        part: {**own.get("components", {}).get(part, {}), **moved.get("components", {}).get(part, {})}
        for part in {*own.get("components", {}), *moved.get("components", {})}
    }
    components["schemas"] = {
        name: {**schema, "title": name} for name, schema in {**mine, **schemas}.items() if name not in _NEVER_SENT
    }
    return {
        **own,
        "info": {**own["info"], "description": ABOUT},
        "tags": _described(paths),
        "paths": paths,
        "components": components,
    }


def _schemas(document: Mapping[str, Any]) -> Mapping[str, Any]:
    schemas: Mapping[str, Any] = document.get("components", {}).get("schemas", {})
    return schemas


def _with_references(part: Any, moved: Mapping[str, str]) -> Any:
    """A copy whose references, including those of discriminators, name the renamed schemas."""
    if isinstance(part, Mapping):
        return {name: _with_references(inner, moved) for name, inner in part.items()}
    if isinstance(part, list):
        return [_with_references(inner, moved) for inner in part]
    return moved.get(part, part) if isinstance(part, str) else part


def _tagged(item: Mapping[str, Any]) -> Document:
    return {
        method: {
            **operation,
            "tags": [_PREFIX + tag for tag in operation.get("tags", ["other"])],
            "operationId": f"admin_{operation.get('operationId', method)}",
        }
        if isinstance(operation, Mapping)
        else operation
        for method, operation in item.items()
    }


def _answered(path: str, item: Mapping[str, Any]) -> Document:
    """A path without the statuses that it never answers: FastAPI and routers declare theirs for all endpoints."""
    return {
        method: {
            **operation,
            "responses": {
                status: answer
                for status, answer in sorted(operation["responses"].items())
                if _is_answered(status, answer.get("description", ""), path, method, operation)
            },
        }
        if isinstance(operation, Mapping)
        else operation
        for method, operation in item.items()
    }


def _is_answered(status: str, codes: str, path: str, method: str, operation: Mapping[str, Any]) -> bool:
    takes = {parameter["name"] for parameter in operation.get("parameters", ())}
    match status:
        case "404":  # neither a list nor a singleton
            return "{" in path or "requestBody" in operation or not takes <= _OF_LISTS
        case "409":  # a read, only if it declares the status itself
            return method not in _READS or codes.startswith("Conflict: ")
        case "412":
            return "If-Match" in takes
        case "413":
            return "requestBody" in operation
    return status != "422"


def _described(paths: Mapping[str, Any]) -> list[Document]:
    """The tags in use: those of ``_TAGS`` in their order, then the others."""
    operations = [operation for item in paths.values() for operation in item.values() if isinstance(operation, Mapping)]
    used = dict.fromkeys(tag for operation in operations for tag in operation.get("tags", []))
    known = [{"name": tag, "description": about} for tag, about in _TAGS.items() if tag in used]
    return known + [{"name": tag} for tag in used if tag not in _TAGS]

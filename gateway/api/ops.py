"""Endpoints for operators and orchestrators: health, readiness, metrics. Plain ASGI: a probe need not wait for FastAPI."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client import REGISTRY, CollectorRegistry
from pydantic import BaseModel, Field

from gateway import __version__
from gateway.api.s3.answer import SERVER, date_header
from gateway.edge.asgi import Edge, Headers, send_json
from gateway.edge.exposition import exposed
from gateway.engine.operations.counting import WorkersCollector
from gateway.fleet.nodes.peer_gate import DISK_WAITS, WAITS_FOR_DISK
from gateway.model.datasets import ApiError
from gateway.policies.health.troubles import Trouble
from gateway.server.asgi_types import Receive, Scope, Send

log = logging.getLogger("larder.v1")


class Health(BaseModel):
    """The process is alive: its event loop answers."""

    status: Literal["ok"] = "ok"
    version: str = Field(default=__version__, examples=["0.1.0"])


class Readiness(BaseModel):
    """Whether the worker accepts requests, and the problems of its node."""

    ready: bool = Field(examples=[True])
    state: Literal["starting", "ready", "draining"] = Field(examples=["ready"])
    problems: dict[str, str] = Field(
        description="the node's problems by kind; /-/admin/problems adds the remedies",
        examples=[{"redis": "Redis is not reachable; cached objects are checked with the origin."}],
    )


class Lifecycle:
    """The stage of a worker's life: starting, ready, draining."""

    def __init__(self) -> None:
        self.state: Literal["starting", "ready", "draining"] = "starting"

    def ready(self, problems: Iterable[Trouble]) -> bool:
        """Whether the worker is ready, given the problems of its node."""
        return self.state == "ready" and not any(problem.unready for problem in problems)


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The sources of health, readiness and metrics.

    They are the worker's lifecycle, its node's problems, the update of the gauges, and whether a request has an admin token.
    """

    lifecycle: Lifecycle
    problems: Callable[[], list[Trouble]]
    refresh: Callable[[], None]
    may_read: Callable[[Scope], bool] = lambda _: False
    waits_for_disk: Callable[[float], bool] = lambda _: False
    """Whether the cache disk has not answered for ``seconds``."""


class OpsApp(Edge):
    """Answers requests for health, readiness and metrics."""

    def __init__(self, monitoring: Monitoring) -> None:
        super().__init__(log)
        self._monitoring = monitoring

    @staticmethod
    def handles(path: str) -> bool:
        """Whether a path (without "/-") is one of these addresses."""
        return path in PATHS

    def headers(self, scope: Scope, status: int) -> Headers:
        """The headers that answers of the data paths have too."""
        headers = date_header(int(time.time())), SERVER
        if scope["path"] == "/healthz" and self._monitoring.waits_for_disk(DISK_WAITS):
            # The process is alive, but other nodes should not wait for it.
            return *headers, (WAITS_FOR_DISK.encode(), b"1")
        return headers

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] != "GET":
            raise ApiError("MethodNotAllowed", headers={"Allow": "GET"})
        match scope["path"]:
            case "/healthz":
                await send_json(send, 200, Health())
            case "/readyz":
                readiness = self._readiness()
                await send_json(send, 200 if readiness.ready else 503, readiness)
            case _:
                await self._send_metrics(scope, send)

    def _readiness(self) -> Readiness:
        lifecycle, troubles = self._monitoring.lifecycle, self._monitoring.problems()
        problems = {trouble.kind: trouble.what for trouble in troubles}
        return Readiness(ready=lifecycle.ready(troubles), state=lifecycle.state, problems=problems)

    async def _send_metrics(self, scope: Scope, send: Send) -> None:
        self._monitoring.refresh()
        registry = REGISTRY
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            WorkersCollector(registry)  # type: ignore[no-untyped-call]
        accepted = b",".join(value for name, value in scope["headers"] if name == b"accept").decode("latin-1")
        body, media_type = exposed(registry, accepted, names=self._monitoring.may_read(scope))
        headers = [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _described(summary: str, name: str, description: str, responses: dict[str, Any]) -> dict[str, Any]:
    about = {"summary": summary, "description": description, "operationId": name}
    return {"get": {"tags": ["operations"], **about, "responses": responses}}


def _answer(description: str, model: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model}"}}}
    return {"description": description, "content": content}


PATHS = {
    "/healthz": _described(
        "Liveness",
        "show_health",
        "Answer while the event loop runs. Restart the process when this fails.",
        {"200": _answer("the process is alive", "Health")},
    ),
    "/readyz": _described(
        "Readiness",
        "show_readiness",
        "Accept requests unless the worker is starting or draining. Other problems are listed, and do not stop reads.",
        {"200": _answer("the worker accepts requests", "Readiness"), "503": _answer("it does not", "Readiness")},
    ),
    "/metrics": _described(
        "Prometheus metrics",
        "show_metrics",
        "All workers' metrics in the Prometheus text format, or in OpenMetrics if the client accepts that. There, latencies of "
        "traced requests have exemplars with the trace's id. Metrics with names of tenants, buckets and origins are shown to "
        "requests with an admin token only.",
        {"200": {"description": "the metrics"}},
    ),
}
"""Descriptions of addresses in the OpenAPI document."""


def with_monitoring(document: Mapping[str, Any]) -> dict[str, Any]:
    """An OpenAPI document with these addresses."""
    components = document["components"]
    schemas = {model.__name__: model.model_json_schema() for model in (Health, Readiness)}
    return {
        **document,
        "paths": {**PATHS, **document["paths"]},
        "components": {**components, "schemas": {**components["schemas"], **schemas}},
    }

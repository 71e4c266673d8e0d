"""Traces: one request through two nodes to the origin is one trace, exported as operators would collect it."""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.base import tracing
from gateway.model.errors import ConfigError
from gateway.policies.fleet.ring import Ring, path_key
from rig.clients import get
from rig.gateways import Running, fleet
from rig.redis_server import RedisServer
from rig.world import Origin, content, eventually

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(ThreadingHTTPServer):
    """A fake OpenTelemetry collector: receives spans by OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.spans: list[Span] = []

    @property
    def endpoint(self) -> str:
        """The URL of the collector."""
        return f"http://127.0.0.1:{self.server_port}"

    def of(self, trace: str) -> list[Span]:
        """The spans of one trace, in the order of their beginning."""
        own = [span for span in self.spans if span.trace_id.hex() == trace]
        return sorted(own, key=lambda span: span.start_time_unix_nano)


class _Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector."""
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def _told(span: Span) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def _route(spans: list[Span], last: str) -> list[Span]:
    """A span and those that it came from, the first one first.

    A cold read may have other spans: a home that joined after another node asks that node for its keys' objects first.
    """
    by_id = {span.span_id.hex(): span for span in spans}
    route: list[Span] = []
    while last in by_id:
        route.insert(0, by_id[last])
        last = route[0].parent_span_id.hex()
    return route


def _to_the_origin(spans: list[Span], path: str) -> list[Span]:
    """The route to the request that the origin got; empty until all of it was exported."""
    asked = [one for one in spans if one.kind == Span.SPAN_KIND_CLIENT and _told(one)["url.path"] == path]
    route = _route(spans, asked[0].span_id.hex()) if asked else []
    return route if route and route[0].parent_span_id.hex() == PARENT else []


def _exemplars(node: Running) -> set[str]:
    """The trace ids on the buckets of a node's latencies."""
    answer = get(node, "/-/metrics", accept="application/openmetrics-text; version=1.0.0")
    families = text_string_to_metric_families(answer.body.decode())
    samples = [sample for family in families for sample in family.samples if sample.exemplar]
    assert {sample.name for sample in samples} <= {"larder_request_seconds_bucket"}
    return {sample.exemplar.labels["trace_id"] for sample in samples}


def test_a_read_through_two_nodes_is_one_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the client's trace continues at the entry node, the home and the origin; a hit ends at the home.

    The latency metrics of the entry node have both traces as exemplars.
    """
    with collecting() as collector, Origin() as origin, RedisServer() as redis:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        extra = "[tracing]\nenabled = true\n"
        with fleet(origin.endpoint, redis.url, 2, tmp_path, extra=extra, fleet={"expire": "60s"}) as (asked, _):
            ring = Ring({"node-0": 1, "node-1": 1})
            path = next(
                f"/bucket/{serial}" for serial in range(100) if ring.home(path_key("bucket", f"{serial}")) == "node-1"
            )
            body = origin.put(path, content(1000, path))
            for trace in (TRACE, TRACE[::-1]):
                got = get(asked, path, traceparent=f"00-{trace}-{PARENT}-01")
                assert got.body == body
            eventually(lambda: _exemplars(asked), {TRACE, TRACE[::-1]}.issubset, "both as examples")
            cold = eventually(lambda: _to_the_origin(collector.of(TRACE), path), len, "the spans of a cold read")
            hit = eventually(lambda: collector.of(TRACE[::-1]), lambda spans: len(spans) >= 3, "the spans of a hit")
    for spans in (cold, hit):
        assert [span.parent_span_id.hex() for span in spans] == [PARENT, *(span.span_id.hex() for span in spans[:-1])]
        assert [_told(span)["http.response.status_code"] for span in spans] == [200] * len(spans)
    kinds = [Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT] * 2
    assert [span.kind for span in cold] == kinds
    assert [span.kind for span in hit] == kinds[:3]
    assert (_told(cold[0])["larder.cache"], _told(hit[0])["larder.cache"]) == ("MISS; reason=cold", "HIT")
    assert _told(cold[0])["url.path"] == path


def test_without_opentelemetry_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the message names the setting and the package to install."""
    monkeypatch.delitem(sys.modules, "gateway.base.telemetry", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"tracing.enabled.*larder-gateway\[tracing\]"):
        tracing.start()
    assert tracing.trace_id() is None

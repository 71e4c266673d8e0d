"""The settings of the listener: its addresses, and the limits on clients' use of a worker."""

from __future__ import annotations

from pydantic import Field

from gateway.base.config_base import Seconds, Section, Size, SocketPath


class ServerSettings(Section):
    """Address, limits and timeouts of the listener."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(9000, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    workers: int = Field(1, ge=1, le=256, description="worker processes sharing one cache")
    domain: str = Field(
        "", description="suffix for virtual-host addressing: bucket.DOMAIN; empty means path style only"
    )
    tls_cert: str = Field("", description="PEM certificate chain; with tls_key, serves HTTPS (without zero-copy)")
    tls_key: str = Field("", description="PEM private key of tls_cert")
    unix_socket: SocketPath = Field(
        "", description="path of a unix socket to listen on as well, for clients on this machine; without TLS only"
    )
    max_in_flight: int = Field(2048, ge=1, description="requests at once per worker; more are answered 503 SlowDown")
    drain_notice: Seconds = Field(
        5.0,
        description="how long after SIGTERM /-/readyz answers 503 while connections are still accepted; longer than load "
        "balancers take to see it",
    )
    drain: Seconds = Field(30.0, description="how long SIGTERM then waits for requests in flight")
    keep_alive: Seconds = Field(75.0, description="how long an idle connection stays open")
    max_connections: int = Field(
        10_000,
        ge=16,
        le=1_000_000,
        description="connections that a worker keeps open, at most half of its descriptors; each caller has a share",
    )
    body_timeout: Seconds = Field(
        30.0,
        ge=1,
        le=3600,
        description="how long the gateway waits for a body that comes more slowly than min_rate; then RequestTimeout",
    )
    min_rate: Size = Field(
        1000,
        le=2**20,
        description="bytes per second that a client must send of a body, and take of an answer, while the gateway waits for "
        "it; 0: a byte within the time is enough",
    )
    body_memory: Size = Field(
        256 * 1024**2, ge=2**24, description="bytes of incomplete bodies in a worker's memory; each caller has a share"
    )
    sigv2: bool = Field(True, description="accept SigV2 in the query string, as botocore presigns for custom endpoints")
    max_spool: Size = Field(
        5 * 1024**3,
        description="largest upload that is read whole before the origin sees it: one with a checksum trailer, or by HTML form",
    )
    spool: Size = Field(
        0,
        description="bytes that all such uploads of a worker may take beside the cache; each caller has a share. 0: a tenth of "
        "cache.capacity divided by the workers, at least 128 MiB",
    )

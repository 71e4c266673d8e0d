"""The setting of the clients' tests: an origin, the road to it, a gateway, and the gateway's access log."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from botocore.exceptions import ClientError

from rig.gateways import Running, Settings, cache_status, gateway, s3_client
from rig.processes import wait_until
from tests.s3compat.certificates import Certificates
from tests.s3compat.clients.base import Access, boto3_client
from tests.s3compat.road import Road

ORIGIN_KEY, ORIGIN_SECRET = "origin-key-a", "origin-secret-a"
_LINE = re.compile(
    r'^- \S+ \[.*?\] \S+ \S+ \S+ REST\.(?P<method>\w+)\.\w+ (?P<key>\S+) "(?P<line>[^"]*)" (?P<status>\d+) (?P<code>\S+) '
    r'.*"(?P<cache>[^"]*)"$'
)


@dataclass(frozen=True)
class Line:
    """One request, as the gateway's access log tells of it; ``cache`` is HIT, MISS, STALE or BYPASS."""

    method: str
    key: str
    status: int
    code: str
    cache: str
    request: str
    reason: str = ""


@dataclass
class World:
    """One gateway before one origin, with a new bucket."""

    running: Running
    road: Road
    access: Access
    origin: Any
    log: Path
    client: Any
    bucket: str = field(default_factory=lambda: f"clients-{uuid.uuid4().hex[:12]}")

    def seed(self, objects: Mapping[str, bytes]) -> None:
        """Put objects at the origin behind the gateway's back."""
        for key, body in objects.items():
            self.origin.put_object(Bucket=self.bucket, Key=key, Body=body)

    def warm(self, objects: Mapping[str, bytes]) -> None:
        """Read objects until the cache has them whole."""
        for key in objects:
            wait_until(lambda key=key: self._hit(key), 60, f"{key} in the cache")

    def _hit(self, key: str) -> bool:
        answer = self.client.get_object(Bucket=self.bucket, Key=key)
        answer["Body"].read()
        return cache_status(answer).startswith("HIT")

    def read(self, key: str) -> bytes | None:
        """Read an object through the gateway; ``None`` if it does not exist."""
        return _read(self.client, self.bucket, key)

    def read_origin(self, key: str) -> bytes | None:
        """Read an object from the origin; ``None`` if it does not exist."""
        return _read(self.origin, self.bucket, key)

    def mark(self) -> int:
        """A place in the access log, for ``since``: the end of the last whole line (the kernel shows a write page by page)."""
        return self.log.read_bytes().rfind(b"\n") + 1

    def since(self, mark: int) -> list[Line]:
        """The requests logged after a mark; a line may appear a moment after its answer."""
        with self.log.open() as stream:
            stream.seek(mark)
            return [_parse(line) for line in stream if line.endswith("\n")]

    def wait_for(self, mark: int, wanted: Callable[[Line], bool], what: str) -> list[Line]:
        """The lines after a mark, as soon as one of them is wanted."""
        found: list[Line] = []

        def there() -> bool:
            found[:] = self.since(mark)
            return any(map(wanted, found))

        wait_until(there, 60, what)
        return found


def _parse(line: str) -> Line:
    match = _LINE.match(line.rstrip("\n"))
    assert match is not None, line
    cache, _, reason = match["cache"].partition("; reason=")
    return Line(
        match["method"], unquote(match["key"]), int(match["status"]), match["code"], cache, match["line"], reason
    )


def _read(client: Any, bucket: str, key: str) -> bytes | None:
    try:
        answer = client.get_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if error.response["Error"]["Code"] == "NoSuchKey":
            return None
        raise
    body: bytes = answer["Body"].read()
    return body


@contextmanager
def world(
    origin_endpoint: str, home: Path, certificates: Certificates | None, *, record: bool = False, **settings: Any
) -> Iterator[World]:
    """A gateway before an origin, over https when there are certificates; ``record`` notes what reaches the origin."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / "access.log"
    server = {"tls_cert": str(certificates.certificate), "tls_key": str(certificates.key)} if certificates else {}
    with Road(origin_endpoint, record=record) as road:
        configured = Settings(
            road.endpoint,
            home / "cache",
            capacity="1GB",
            origin_key=(ORIGIN_KEY, ORIGIN_SECRET),
            server=server,
            extra=f'[log]\naccess = "{log}"\n',
            **settings,
        )
        with gateway(configured, home) as running:
            authority = certificates.authority if certificates else None
            access = Access(running.endpoint, "GWA", "gateway-secret-a", authority)
            origin = s3_client(origin_endpoint, ORIGIN_KEY, ORIGIN_SECRET)
            client = boto3_client(access)
            made = World(running, road, access, origin, log, client)
            origin.create_bucket(Bucket=made.bucket)
            try:
                yield made
            finally:
                origin.close()
                client.close()

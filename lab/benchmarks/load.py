"""Signed requests and wrk, which sends them.

A signature is valid for 15 minutes, longer than a benchmark, so requests are signed before the clock runs and
the load generator only cycles through them; the server verifies every one.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY

_SCRIPT = """
local requests, next = {{}}, 0
init = function(args)
{requests}
end
request = function()
  next = next % #requests + 1
  return requests[next]
end
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d %d\\n", summary.requests, summary.duration, summary.bytes,
           e.connect + e.read + e.write + e.timeout, e.status, latency:percentile(50)))
  io.write(string.format("P99 %d\\n", latency:percentile(99)))
end
"""
_PAUSE = """
delay = function()
  return math.floor({milliseconds} + math.random())
end
"""
"""A pause of every connection before each request, in whole milliseconds, which are exact on average."""
_ESCAPED = [chr(byte) if chr(byte).isascii() and chr(byte).isalnum() else f"\\{byte:03d}" for byte in range(256)]
"""Bytes as a Lua string."""


def raw_request(port: int, key: str, byte_range: tuple[int, int] | None = None) -> bytes:
    """A whole GET request of an object, or of its bytes from first to before last, signed by SigV4 as botocore does it."""
    headers = {} if byte_range is None else {"Range": f"bytes={byte_range[0]}-{byte_range[1] - 1}"}
    return _signed("GET", port, f"/{BUCKET}/{key}", b"", headers)


def raw_listing(port: int, query: str) -> bytes:
    """A whole signed request for a listing of the bucket."""
    return _signed("GET", port, f"/{BUCKET}?{query}", b"")


def raw_upload(port: int, key: str, body: bytes) -> bytes:
    """A whole PUT request of an object; its SHA-256 is signed, as SDKs do it without TLS."""
    return _signed("PUT", port, f"/{BUCKET}/{key}", body)


def raw_batch(port: int, dataset: str, indices: bytes, query: str) -> bytes:
    """A whole signed request for a batch of a dataset, named by its id."""
    return _signed("POST", port, f"/-/v1/datasets/{dataset}/batch?{query}", indices)


def _signed(method: str, port: int, target: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    request = AWSRequest(method, f"http://127.0.0.1:{port}{target}", data=body, headers=dict(headers or {}))
    S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", "us-east-1").add_auth(request)
    fields = {"Host": f"127.0.0.1:{port}", **dict(request.headers.items())}
    if body:
        fields["Content-Length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode() + body


@dataclass(frozen=True)
class Outcome:
    """Figures of one run of wrk; latencies in seconds; ``bytes`` include those of answers not read to their end."""

    requests: int
    seconds: float
    errors: int
    median_latency: float
    bytes: int
    p99_latency: float


def write_script(path: Path, requests: list[bytes], pause: float = 0.0) -> None:
    """A wrk script that sends the requests in turn, each with its own signature.

    Args:
        path: of the script.
        requests: whole requests.
        pause: seconds that each connection waits before each request.
    """
    lines = ('  requests[#requests + 1] = "' + "".join(map(_ESCAPED.__getitem__, each)) + '"' for each in requests)
    script = _SCRIPT.format(requests="\n".join(lines))
    path.write_text(script + (_PAUSE.format(milliseconds=pause * 1e3) if pause else ""))


def run_wrk(script: Path, port: int, connections: int, seconds: float) -> Outcome:
    """Load a server with keep-alive connections from one thread."""
    command = [
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{max(1, round(seconds))}s",
        "-s",
        str(script),
        f"http://127.0.0.1:{port}",
    ]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)\s+P99 (\d+)", output)
    if match is None:
        raise RuntimeError(f"wrk said nothing usable:\n{output}")
    requests, microseconds, received, broken, refused, latency, p99 = map(int, match.groups())
    return Outcome(requests, microseconds / 1e6, broken + refused, latency / 1e6, received, p99 / 1e6)

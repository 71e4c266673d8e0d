"""Signed requests and wrk, which sends them.

A signature is valid for 15 minutes, longer than a benchmark, so requests are signed before the clock runs and
the load generator only cycles through them; the server verifies every one.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY

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
  io.write(string.format("RESULT %d %d %d %d %d\\n", summary.requests, summary.duration,
           e.connect + e.read + e.write + e.timeout, e.status, latency:percentile(50)))
end
"""


def signed_headers(port: int, key: str) -> dict[str, str]:
    """The headers of a GET of ``key``, signed by SigV4 as botocore does it."""
    request = AWSRequest("GET", f"http://127.0.0.1:{port}/{BUCKET}/{key}")
    S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", "us-east-1").add_auth(request)
    return {"Host": f"127.0.0.1:{port}", **dict(request.headers.items())}


def raw_request(port: int, key: str) -> bytes:
    """A whole signed GET request."""
    headers = "".join(f"{name}: {value}\r\n" for name, value in signed_headers(port, key).items())
    return f"GET /{BUCKET}/{key} HTTP/1.1\r\n{headers}\r\n".encode()


@dataclass(frozen=True)
class Outcome:
    """What one run of wrk saw."""

    requests: int
    seconds: float
    errors: int
    median_latency: float


def write_script(path: Path, port: int, keys: list[str]) -> None:
    """A wrk script that asks for the keys in turn, each with its own signature."""
    lines = []
    for key in keys:
        escaped = raw_request(port, key).decode().replace("\\", "\\\\").replace('"', '\\"').replace("\r\n", "\\r\\n")
        lines.append(f'  requests[#requests + 1] = "{escaped}"')
    path.write_text(_SCRIPT.format(requests="\n".join(lines)))


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
    match = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+)", output)
    if match is None:
        raise RuntimeError(f"wrk said nothing usable:\n{output}")
    requests, microseconds, broken, refused, latency = map(int, match.groups())
    return Outcome(requests, microseconds / 1e6, broken + refused, latency / 1e6)

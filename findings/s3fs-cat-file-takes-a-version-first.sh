#!/usr/bin/env bash
# fs.cat_file(path, start, end), as fsspec documents it, reads other bytes in s3fs: its second argument is a version. cat_file(path, 0,
# 8) returns all but the first 8 bytes, and nothing is raised; of fsspec's other file systems it returns the first 8. By keyword all
# agree. Expected: the first 8 bytes, or TypeError. Seen with s3fs 2026.9.0.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 's3fs==2026.9.0'
"$home/v/bin/python" - <<'END'
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import s3fs

DATA = bytes(range(32))

class Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"]).groups()
        body = DATA[int(first) : int(last) + 1 if last else None]
        self.send_response(206)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(body) - 1}/{len(DATA)}")
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
threading.Thread(target=server.serve_forever, daemon=True).start()
memory = fsspec.filesystem("memory")
memory.pipe_file("/bucket/key", DATA)
s3 = s3fs.S3FileSystem(key="a", secret="b", endpoint_url=f"http://127.0.0.1:{server.server_port}")
print("s3fs", s3fs.__version__, "by place:", s3.cat_file("bucket/key", 0, 8), "memory:", memory.cat_file("bucket/key", 0, 8))
assert memory.cat_file("bucket/key", 0, 8) == DATA[:8] == s3.cat_file("bucket/key", start=0, end=8)
assert s3.cat_file("bucket/key", 0, 8) == DATA[8:]
END

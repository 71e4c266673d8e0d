#!/usr/bin/env bash
# h5py reads one number of an HDF5 file of 210 MB over s3fs as its documentation shows, and s3fs fetches 105 MB of it: 50 MiB around
# the header and 50 MiB around the number, as that is its block size, and it reads a whole one ahead of every read. Expected: about
# what h5py asks for, which is 5 KB; with block_size=65536 it is 131 KB. Seen with s3fs 2026.9.0 and h5py 3.16.0.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 's3fs==2026.9.0' 'h5py==3.16.0' numpy
"$home/v/bin/python" - <<'END'
import io
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import h5py
import numpy
import s3fs

whole = io.BytesIO()
with h5py.File(whole, "w") as file:
    file.create_dataset("images", data=numpy.zeros((200, 1024, 128)))
data = whole.getvalue()
sent = []

class Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
    def do_GET(self):
        first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups()
        body = data[int(first) : int(last) + 1]
        sent.append(len(body))
        self.send_response(206)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(body) - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
threading.Thread(target=server.serve_forever, daemon=True).start()
store = s3fs.S3FileSystem(key="a", secret="b", endpoint_url=f"http://127.0.0.1:{server.server_port}")

def fetched(**how):
    sent.clear()
    with store.open("bucket/arrays.h5", **how) as remote, h5py.File(remote) as file:
        assert file["images"][150, 5, 5] == 0
    return sum(sent), len(sent)

print(len(data), fetched(), fetched(block_size=65536), fetched(cache_type="none"))
assert fetched() == (104_852_448, 2)
assert fetched(block_size=65536) == (131_088, 2)
assert fetched(cache_type="none")[0] < 6_000
END

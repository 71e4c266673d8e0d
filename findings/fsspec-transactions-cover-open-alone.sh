#!/usr/bin/env bash
# A transaction of fsspec that ends by an exception discards, of all that was written in it, only what went through open(): objects
# of s3fs written by pipe(), put(), copy() or mv() stay, and what rm() has deleted is gone, at once and for everyone. A checkpoint
# whose index was to come with its parts is left in parts, or without its predecessor.
# Expected: all of the block or nothing. Seen with fsspec 2026.9.0, s3fs 2026.9.0 and moto 5.2.5.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'fsspec==2026.9.0' 's3fs==2026.9.0' 'aiobotocore==3.10.0' 'boto3==1.43.117' 'moto[server]==5.2.5'
"$home/v/bin/python" - "$home" <<'END'
import sys
import s3fs
from moto.server import ThreadedMotoServer

file = sys.argv[1] + "/file"
open(file, "w").write("put")
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
endpoint = "http://{}:{}".format(*server.get_host_and_port())
files = s3fs.S3FileSystem(key="key", secret="secret", endpoint_url=endpoint, use_listings_cache=False)
files.mkdir("bucket")
files.pipe({"bucket/old-1": b"1", "bucket/old-2": b"2"})

try:
    with files.transaction:
        with files.open("bucket/by-open", "wb") as opened:
            opened.write(b"open")
        files.pipe("bucket/by-pipe", b"pipe")
        files.put(file, "bucket/by-put")
        files.copy("bucket/old-1", "bucket/by-copy")
        files.mv("bucket/old-1", "bucket/by-mv")
        files.rm("bucket/old-2")
        raise RuntimeError("the job was stopped")
except RuntimeError:
    pass
left = sorted(path.removeprefix("bucket/") for path in files.ls("bucket"))
print(left)
assert left == ["by-copy", "by-mv", "by-pipe", "by-put"]
server.stop()
END

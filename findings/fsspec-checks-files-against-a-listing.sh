#!/usr/bin/env bash
# fsspec's filecache with check_files=True, which is to ask the store before each use whether the object is still that of the cache,
# asks nothing of S3 once its folder was listed, as by glob("*.bin"): s3fs answers from that listing, which never expires. An object
# that is overwritten afterwards is read as it was, for as long as the process lives. Without the glob() the new bytes come at once.
# Expected: a request each time. Seen with fsspec 2026.9.0, s3fs 2026.9.0 and moto 5.2.5.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'fsspec==2026.9.0' 's3fs==2026.9.0' 'aiobotocore==3.10.0' 'boto3==1.43.117' 'moto[server]==5.2.5'
"$home/v/bin/python" - "$home" <<'END'
import sys
import boto3
import fsspec
from moto.server import ThreadedMotoServer

home = sys.argv[1]
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
endpoint = "http://{}:{}".format(*server.get_host_and_port())
s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret")
s3.create_bucket(Bucket="bucket")

def reads(listed):
    prefix = "listed" if listed else "unlisted"
    files = fsspec.filesystem(
        "filecache", target_protocol="s3", cache_storage=f"{home}/{prefix}", check_files=True, skip_instance_cache=True,
        target_options={"endpoint_url": endpoint, "key": "key", "secret": "secret", "skip_instance_cache": True},
    )
    read = []
    for body in (b"old", b"renewed"):
        s3.put_object(Bucket="bucket", Key=f"{prefix}/0.bin", Body=body)
        if listed:
            assert files.glob(f"bucket/{prefix}/*.bin") == [f"bucket/{prefix}/0.bin"]
        with files.open(f"bucket/{prefix}/0.bin") as file:
            read.append(file.read())
    return read

read = {"not listed": reads(False), "listed": reads(True)}
print(read)
assert read == {"not listed": [b"old", b"renewed"], "listed": [b"old", b"old"]}
server.stop()
END

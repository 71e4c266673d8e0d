#!/usr/bin/env bash
# smart_open.open("s3://bucket/shard.zst", "wb") without the package for zstd raises ModuleNotFoundError and, once the
# error has been handled, replaces the object by an empty one: the half-made file is collected, which closes it. Expected: an error
# that leaves the object alone, as one in the `with` block of such a file does.
# Seen with smart_open 9.0.2, Python 3.11 and moto 5.2.5.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'smart_open==9.0.2' 'boto3==1.44.8' 'moto[server]==5.2.5'
"$home/v/bin/python" - <<'END'
import boto3
from moto.server import ThreadedMotoServer
import smart_open

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
endpoint = "http://{}:{}".format(*server.get_host_and_port())
s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret")
s3.create_bucket(Bucket="bucket")
s3.put_object(Bucket="bucket", Key="shard.zst", Body=b"a shard")
try:
    smart_open.open("s3://bucket/shard.zst", "wb", transport_params={"client": s3})
    raised = False
except ModuleNotFoundError:
    raised = True
left = s3.get_object(Bucket="bucket", Key="shard.zst")["Body"].read()
print(raised, left)
assert raised
assert left == b""
server.stop()
END

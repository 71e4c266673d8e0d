#!/usr/bin/env bash
# rename() and replace() of cloudpathlib delete the target before they copy: the rename of an object that is not there (a checkpoint
# that another process has moved already) raises an error, and the checkpoint at the target is gone. Expected: an error that changes
# nothing, as rename() of a local path does, whose name and arguments these have. Seen with cloudpathlib 0.26.0 and moto 5.2.5.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'cloudpathlib[s3]==0.26.0' 'boto3==1.44.8' 'moto[server]==5.2.5'
"$home/v/bin/python" - "$home" <<'END'
import pathlib
import sys
import boto3
import botocore.exceptions
from cloudpathlib import S3Client
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
endpoint = "http://{}:{}".format(*server.get_host_and_port())
session = boto3.Session("key", "secret", region_name="us-east-1")
client = S3Client(boto3_session=session, endpoint_url=endpoint)
client.client.create_bucket(Bucket="bucket")

def left(folder, errors):
    """What is at the target after a rename of an object or file that is not there."""
    target = folder / "latest.ckpt"
    target.write_text("weights of a week")
    for move in (folder / "step-100.ckpt").rename, (folder / "step-100.ckpt").replace:
        try:
            move(target)
            raise AssertionError("no error")
        except errors:
            pass
    return target.read_text() if target.exists() else None

kept = {
    "local": left(pathlib.Path(sys.argv[1]), FileNotFoundError),
    "s3": left(client.CloudPath("s3://bucket/run/"), botocore.exceptions.ClientError),
}
print(kept)
assert kept == {"local": "weights of a week", "s3": None}
server.stop()
END

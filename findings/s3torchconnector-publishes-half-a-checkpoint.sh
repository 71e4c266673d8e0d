#!/usr/bin/env bash
# S3Checkpoint.writer of s3torchconnector, left by an exception (torch.save that meets a tensor it cannot write, a job that is
# stopped), publishes what it has as soon as the writer is collected: half a checkpoint replaces the whole one at its key. Expected:
# the checkpoint stays, as the writer is not closed on an exception for that reason. Seen with s3torchconnector 1.5.0, torch 2.13.0 and moto 5.2.5.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 's3torchconnector==1.5.0' 'torch==2.13.0' numpy 'boto3==1.44.8' 'moto[server]==5.2.5'
"$home/v/bin/python" - <<'END'
import os
import boto3
from moto.server import ThreadedMotoServer
from s3torchconnector import S3Checkpoint, S3ClientConfig
import torch

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
endpoint = "http://{}:{}".format(*server.get_host_and_port())
os.environ.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", AWS_REGION="us-east-1", AWS_DEFAULT_REGION="us-east-1")
s3 = boto3.client("s3", endpoint_url=endpoint)
s3.create_bucket(Bucket="bucket")
checkpoint = S3Checkpoint(region="us-east-1", endpoint=endpoint, s3client_config=S3ClientConfig(force_path_style=True))
with checkpoint.writer("s3://bucket/last.pt") as writer:
    torch.save({"step": 1, "weights": torch.zeros(1000)}, writer)
whole = s3.head_object(Bucket="bucket", Key="last.pt")["ContentLength"]
try:
    with checkpoint.writer("s3://bucket/last.pt") as writer:
        writer.write(b"half of it")
        raise InterruptedError
except InterruptedError:
    pass
kept = s3.head_object(Bucket="bucket", Key="last.pt")["ContentLength"]
del writer
left = s3.get_object(Bucket="bucket", Key="last.pt")["Body"].read()
print(whole, kept, left)
assert kept == whole > 4000
assert left == b"half of it"
server.stop()
END

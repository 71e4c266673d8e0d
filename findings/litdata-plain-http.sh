#!/usr/bin/env bash
# LitData reads no chunk from an S3 endpoint with an http:// address, though its index comes: the index is read by boto3, chunks by
# obstore, which is not told that http is allowed, and LITDATA_ASYNC_CHUNK_PREFETCH=0 changes nothing. Without the package obstore, on
# which it depends, the same program reads everything. Expected: what boto3 reads, or an error that names the address.
# Seen with litdata 0.2.76, obstore 0.12.1 and moto 5.2.2.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'litdata==0.2.76' 'obstore==0.12.1' 'torch==2.13.0' numpy 'moto[server]==5.2.2' boto3
cat >"$home/program.py" <<'END'
import os
import sys
import tempfile
from pathlib import Path
import boto3
import litdata
from moto.server import ThreadedMotoServer


def sample(number):
    return {"x": number}


if __name__ == "__main__":
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    endpoint = "http://%s:%s" % server.get_host_and_port()
    folder = Path(tempfile.mkdtemp()) / "dataset"
    litdata.optimize(fn=sample, inputs=list(range(20)), output_dir=str(folder), chunk_size=5, num_workers=1)
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="bucket")
    for path in folder.iterdir():
        client.upload_file(str(path), "bucket", f"dataset/{path.name}")
    options = {"endpoint_url": endpoint, **keys}
    try:
        dataset = litdata.StreamingDataset("s3://bucket/dataset", cache_dir=tempfile.mkdtemp(), storage_options=options)
        outcome = str(sorted(int(of["x"]) for of in dataset) == list(range(20)))
    except Exception as error:
        outcome = "BadScheme" if "BadScheme" in str(error) + str(error.__cause__) else repr(error)
    print(sys.argv[1], outcome, flush=True)
    os._exit(0 if outcome == sys.argv[2] else 1)
END
cd "$home"
export HOME=$home TMPDIR=$home AWS_DEFAULT_REGION=us-east-1
timeout 200 "$home/v/bin/python" -W ignore "$home/program.py" "with obstore:" BadScheme
LITDATA_ASYNC_CHUNK_PREFETCH=0 timeout 200 "$home/v/bin/python" -W ignore "$home/program.py" "without asynchronous reads:" BadScheme
"$home/v/bin/pip" uninstall -q -y obstore
timeout 200 "$home/v/bin/python" -W ignore "$home/program.py" "without obstore:" True

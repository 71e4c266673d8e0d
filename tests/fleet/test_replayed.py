"""Requests between real gateways cannot be repeated where they change something."""

from __future__ import annotations

import http.client
import time
from pathlib import Path

from gateway.model.keys import ObjectKey
from gateway.model.peer.announcements import ANNOUNCE, written
from gateway.model.peer.auth import PeerSigner
from gateway.model.s3.sigv4 import WireRequest
from rig.clients import client_of_each_worker
from rig.gateways import FLEET_SECRET, fleet_node, gateway, wait_for_fleet
from rig.redis_server import RedisServer
from rig.world import Origin


def test_an_announcement_is_made_once(tmp_path: Path, store: Origin, shared_redis: RedisServer) -> None:
    """Rule: whichever workers an intercepted announcement reaches, and however often, it is made once."""
    settings = fleet_node(store.endpoint, shared_redis.url, 0, tmp_path, workers=2)
    with gateway(settings, tmp_path / "home") as running:
        wait_for_fleet([running], {"node-0": "READY"})
        body = written([ObjectKey("default", "bucket", "key")])
        wire = WireRequest("POST", ANNOUNCE.encode(), b"", [])
        headers = dict(PeerSigner(FLEET_SECRET, "node-9").headers(wire, body, time.time(), "7" * 16))
        statuses = []
        with client_of_each_worker(running) as clients:
            for client in [*clients.values()] * 2:
                client.connection.request("POST", ANNOUNCE, body, headers)
                answer: http.client.HTTPResponse = client.connection.getresponse()
                answer.read()
                statuses.append(answer.status)
        assert statuses[0] < 300
        assert statuses[1:] == [409, 409, 409]

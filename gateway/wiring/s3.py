"""Wires the S3 edge of one worker."""

from __future__ import annotations

from gateway.api.peer.objects import PeerObjects
from gateway.api.s3.about_bucket import BucketReads
from gateway.api.s3.accounting import Accounting
from gateway.api.s3.app import ReadPaths, S3App
from gateway.api.s3.asked_loads import AskedLoads
from gateway.api.s3.auth import Authenticator
from gateway.api.s3.direct import DirectReads
from gateway.api.s3.forward import Forwarder
from gateway.api.s3.hot import HotReads
from gateway.api.s3.listings import ListingReads
from gateway.api.s3.objects import ObjectReads
from gateway.api.s3.presented import PresentedReads
from gateway.api.s3.relayed import RelayedReads
from gateway.base.config import Settings
from gateway.engine.engine import Engine
from gateway.engine.operations.warm_objects import WarmObjects
from gateway.server.asgi_types import Begin
from gateway.server.received import BODIES
from gateway.store.shared.accesses import Note
from gateway.wiring.fleet import FleetServices
from gateway.wiring.spools import spooling


def serve_s3(
    settings: Settings,
    engine: Engine,
    fleet: FleetServices,
    authenticator: Authenticator,
    accounting: Accounting,
    note: Note,
    elsewhere: Begin,
) -> tuple[S3App, PeerObjects]:
    """Build the S3 edge for clients, which passes paths under ``/-`` to ``elsewhere``, and the edge that serves other nodes.

    ``note`` is called with each read.
    """
    BODIES.limit = settings.server.body_memory
    reads, hot = ObjectReads(engine), HotReads(engine, fleet.membership)
    relayed = RelayedReads(reads, engine, fleet.membership, fleet.peers)
    forwarder = Forwarder(engine, spooling(settings, engine.services.store), relayed)
    direct, of_buckets = DirectReads(engine, fleet.peers, note, accounting), BucketReads(relayed, forwarder, engine)
    asked_loads = AskedLoads(engine, WarmObjects(engine, engine.services.fleet))
    presented = PresentedReads(relayed, of_buckets, forwarder, engine)
    ways = ReadPaths(
        hot, reads, relayed, direct, of_buckets, presented, ListingReads(forwarder, engine), asked_loads, note
    )
    s3 = S3App(authenticator, ways, forwarder, accounting, settings.server, elsewhere)
    return s3, PeerObjects(reads, hot, engine)

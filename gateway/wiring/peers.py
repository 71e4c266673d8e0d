"""Wires one worker's answers to other nodes."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.api.peer.announcements import announcements
from gateway.api.peer.app import Address, PeerApp
from gateway.api.peer.importance import peer_importance
from gateway.api.peer.items import PeerItemsEdge
from gateway.api.peer.objects import PeerObjects
from gateway.api.peer.results import peer_results
from gateway.api.peer.seen import peer_sightings
from gateway.store.shared.only_once import OnlyOnce
from gateway.wiring.datasets import DatasetEdge
from gateway.wiring.operations import WorkerServices


def serve_peers(
    ground: WorkerServices, objects: PeerObjects, datasets: DatasetEdge, operators: Mapping[str, Address]
) -> PeerApp | None:
    """Serve other nodes, if there can be any; ``operators`` are the addresses for operators' requests."""
    gate, engine = ground.fleet.gate, ground.engine
    if gate is None:
        return None
    services, registrations = engine.services, datasets.registrations
    addresses = {
        "object": objects.address,
        **PeerItemsEdge(registrations, engine.batches, services.store).addresses(),
        "announce": announcements(ground.channel.announce_for),
        "seen": peer_sightings(engine.sightings),
        "importance": peer_importance(datasets.exchange, registrations.find),
        "results": peer_results(registrations, datasets.results),
        **operators,
    }
    gate.once = OnlyOnce(lambda: services.store.generations.seen, services.leases, services.now)
    return PeerApp(gate, services.origin.has, addresses, ground.settings.server.max_in_flight)

"""The access streams of a node: every worker hands over what its clients read, and the keeper's worker learns from it.

The worker with the node lock receives the reads of all workers (gateway/store/observation.py); the others send. A worker that
becomes the keeper begins with nothing and learns again within a few hundred reads.
"""

from __future__ import annotations

from gateway import metrics
from gateway.store.observation import ObservedReads, ReadChannel
from gateway.store.store import Store

HAND_OVER = 0.25
"""Seconds between two hand-overs of a worker."""
_MOST = 4096
"""Reads that the keeper's worker takes in one turn."""


class StreamKeeper:
    """One worker's part.

    Args:
        store: of the node.
        observed: the reads of this worker.
        channel: to the other workers.
    """

    def __init__(self, store: Store, observed: ObservedReads, channel: ReadChannel) -> None:
        self._store = store
        self._observed = observed
        self._channel = channel

    async def turn(self) -> None:
        """Hand over what this worker's clients read, or take what all workers' clients did."""
        reads, dropped = self._observed.take()
        if self._store.directory.locked:
            self._channel.open()
            reads += self._channel.receive(_MOST)
            metrics.STREAM_ACCESSES.labels("recorded").inc(len(reads))
        else:
            self._channel.stop_receiving()
            dropped += len(reads) - self._channel.send(reads)
        metrics.STREAM_ACCESSES.labels("dropped").inc(dropped)

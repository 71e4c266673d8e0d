"""Verifications in one worker."""

from __future__ import annotations

from gateway.fleet.nodes.verifications import VerificationQueue
from gateway.operate.ground import BackgroundLoop, Ground, RunningFeature
from gateway.operate.verify.work import Verifications


def start(ground: Ground) -> RunningFeature:
    """Run the verifications requested of this node, in the worker that speaks for it."""
    queue = VerificationQueue(ground.redis, ground.membership.prefix)
    verifications = Verifications(queue, ground.me, ground.settings.cache, lambda: ground.watch.speaks)
    return RunningFeature({"verifications": verifications}, (BackgroundLoop(verifications.run),))

"""Explanations in one worker."""

from __future__ import annotations

from gateway.operate.explain.peer import peer_explanations
from gateway.operate.explain.work import Explainer
from gateway.operate.ground import Ground, RunningFeature


def start(ground: Ground) -> RunningFeature:
    """Explain to operators, and to other nodes."""
    explainer = Explainer(ground.engine, ground.me)
    return RunningFeature({"explainer": explainer}, addresses={"explain": peer_explanations(explainer)})

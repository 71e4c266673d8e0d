"""Explanations in one worker."""

from __future__ import annotations

from gateway.operate.explain.items import ItemFinder
from gateway.operate.explain.peer import peer_explanations
from gateway.operate.explain.work import Explainer
from gateway.operate.ground import Ground, RunningFeature


def start(ground: Ground) -> RunningFeature:
    """Explain to operators, and to other nodes."""
    explainer = Explainer(ground.engine, ground.me)
    finder = ItemFinder(ground.registrations, ground.planned, ground.engine.batches)
    return RunningFeature(
        {"explainer": explainer, "item_finder": finder}, addresses={"explain": peer_explanations(explainer)}
    )

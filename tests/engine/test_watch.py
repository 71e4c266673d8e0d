"""Problems reported by workers that are not the speaker of their node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from gateway.engine.operations.watch import NodeIdentity, NodeView, NodeWatch
from gateway.policies.health.troubles import Trouble
from gateway.policies.space.plan import Plan


class SpokenFor:
    """Samples of a node for which a sibling speaks; it said ``document`` last."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document

    async def speaks(self, _node: str, _me: str) -> bool:
        """Never this worker."""
        return False

    async def said(self, _node: str) -> Mapping[str, Any]:
        """The speaker's last report."""
        return self.document


def silent(document: Mapping[str, Any], *parts: Trouble) -> NodeWatch:
    """A worker whose parts report these problems."""
    store: Any = SimpleNamespace(usable=False)
    samples: Any = SpokenFor(document)
    return NodeWatch(
        samples, NodeIdentity("node-1", "boot-1", "worker-2"), NodeView(store, tuple, Plan, parts=lambda: parts)
    )


async def test_a_silent_worker_reports_what_its_node_counted() -> None:
    """Rule: problems that follow from counters are the speaker's, those of parts this worker's own; errors first."""
    said = [asdict(Trouble.of("churn", "Much is evicted.")), asdict(Trouble.of("fleet", "Not this worker's."))]
    watch = silent({"boot": "boot-1", "problems": said}, Trouble.of("reload", "It is refused."))
    assert [each.kind for each in watch.problems()] == ["reload"]
    await watch.run_once()
    assert [each.kind for each in watch.problems()] == ["reload", "churn"]


async def test_words_of_an_earlier_start_are_not_believed() -> None:
    """Rule: warnings from before the node's last start are no problems."""
    said = [asdict(Trouble.of("churn", "Much is evicted."))]
    watch = silent({"boot": "boot-0", "problems": said})
    await watch.run_once()
    assert watch.problems() == []

"""Samples of nodes: which are kept for long, and nodes to forget."""

from __future__ import annotations

import pytest

from gateway.policies.fleet.samples import minute_begins, surplus


@pytest.mark.parametrize(("last", "kept"), [(None, True), (100.0, True), (101.0, False), (160.0, False), (161.0, True)])
def test_a_sample_a_minute_is_kept_for_long(last: float | None, kept: bool) -> None:
    """Rule: the first one, one a minute after the last, and one after a clock was set back are kept."""
    assert minute_begins(last, 160.0) is kept


def test_the_node_heard_least_recently_is_forgotten() -> None:
    """Rule: beyond the bound of nodes, the one heard least recently is forgotten."""
    heard = {"a": 3.0, "b": 1.0, "c": 2.0}
    assert surplus(heard, 3) is None
    assert surplus(heard, 2) == "b"

"""The road to the origin: bandwidth that is shared fairly, in virtual time."""

import pytest

from gateway.sim.jobs.link import Link
from gateway.sim.world.clock import Clock


def arrivals(
    bandwidth: float,
    transfers: list[tuple[float, float, float, bool]],
    latency: float = 0.0,
    *,
    in_order: bool = False,
    limits: dict[float, float] | None = None,
) -> list[float]:
    """End times of the transfers (start, size, cap, background); ``limits`` maps times to new bandwidths."""
    clock = Clock()
    link = Link(clock, bandwidth, latency, in_order=in_order)
    for at, limit in (limits or {}).items():
        clock.after(at, lambda limit=limit: link.limit(limit))
    done = [0.0] * len(transfers)

    def begin(place: int, size: float, cap: float, background: bool) -> None:
        link.send(size, lambda: done.__setitem__(place, clock.now), cap=cap, background=background)

    for place, (start, size, cap, background) in enumerate(transfers):
        clock.after(
            start, lambda place=place, size=size, cap=cap, background=background: begin(place, size, cap, background)
        )
    clock.run(1e6)
    return done


def test_two_transfers_share_the_bandwidth():
    """Rule: two concurrent transfers have half each; the last one has all."""
    assert arrivals(100, [(0, 1000, 0, False), (0, 500, 0, False)]) == pytest.approx([15, 10])


def test_what_one_cannot_use_goes_to_the_others():
    """Rule: by max-min fairness, a capped transfer leaves the rest to the others."""
    assert arrivals(100, [(0, 100, 10, False), (0, 900, 0, False)]) == pytest.approx([10, 10])


def test_a_transfer_that_joins_slows_the_others_from_then_on():
    """Rule: rates change when a transfer begins or ends, and at no other time."""
    assert arrivals(100, [(0, 1000, 0, False), (5, 1000, 0, False)]) == pytest.approx([15, 20])


def test_the_background_gets_what_is_left():
    """Rule: a background transfer waits while others fill the bandwidth."""
    assert arrivals(100, [(0, 1000, 0, True), (5, 500, 0, False)]) == pytest.approx([15, 10])


def test_what_somebody_waits_for_is_hurried():
    """Rule: a background transfer shares equally as soon as a reader waits for it."""
    clock = Clock()
    link = Link(clock, 100)
    done: list[float] = []
    transfer = link.send(500, lambda: done.append(clock.now), background=True)
    link.send(500, lambda: done.append(clock.now))
    link.hurry(transfer)
    clock.run(100)
    assert done == pytest.approx([10, 10])


def test_latency_comes_before_the_first_byte():
    """Rule: an answer begins after the latency, however fast the road."""
    assert arrivals(100, [(0, 100, 0, False)], latency=2) == pytest.approx([3])


def test_in_order_the_first_gets_all():
    """Rule: a store that serves in the order of arrival gives the second nothing before the first is through."""
    assert arrivals(100, [(0, 1000, 0, False), (1, 500, 0, False)], in_order=True) == pytest.approx([10, 15])


def test_in_order_what_the_first_cannot_use_goes_to_the_next():
    """Rule: a capped transfer leaves the rest to those behind it; the background still comes last."""
    transfers = [(0.0, 100.0, 10.0, False), (0.0, 900.0, 0.0, True), (0.0, 900.0, 0.0, False)]
    assert arrivals(100, transfers, in_order=True) == pytest.approx([10, 19, 10])


def test_a_limit_that_changes_counts_for_what_is_on_its_way():
    """Rule: after a change of the limit, the rest of a transfer goes at the new bandwidth."""
    assert arrivals(100, [(0, 1000, 0, False)], limits={5: 500, 5.5: 50}) == pytest.approx([10.5])


def test_a_very_wide_road_late_in_time_comes_to_an_end():
    """Rule: a transfer shorter than the clock's resolution ends at once."""
    assert arrivals(1e15, [(1e5, 4096, 0, False), (1e5, 4097, 0, False)]) == pytest.approx([1e5, 1e5])

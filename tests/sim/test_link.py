"""The road to the origin: bandwidth that is shared fairly, in virtual time."""

import pytest

from gateway.sim.clock import Clock
from gateway.sim.link import Link


def arrivals(bandwidth: float, transfers: list[tuple[float, float, float, bool]], latency: float = 0.0) -> list[float]:
    """When each transfer (start, size, cap, background) is through."""
    clock = Clock()
    link = Link(clock, bandwidth, latency)
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
    """Rule: with two at a time each has half; what is left goes to the one that is."""
    assert arrivals(100, [(0, 1000, 0, False), (0, 500, 0, False)]) == pytest.approx([15, 10])


def test_what_one_cannot_use_goes_to_the_others():
    """Rule: max-min fairness: a transfer with a cap of its own leaves the rest to the others."""
    assert arrivals(100, [(0, 100, 10, False), (0, 900, 0, False)]) == pytest.approx([10, 10])


def test_a_transfer_that_joins_slows_the_others_from_then_on():
    """Rule: rates change when a transfer begins or ends, and at no other time."""
    assert arrivals(100, [(0, 1000, 0, False), (5, 1000, 0, False)]) == pytest.approx([15, 20])


def test_the_background_gets_what_is_left():
    """Rule: a background transfer waits while others fill the bandwidth."""
    assert arrivals(100, [(0, 1000, 0, True), (5, 500, 0, False)]) == pytest.approx([15, 10])


def test_what_somebody_waits_for_is_hurried():
    """Rule: a background transfer that somebody waits for shares like any other."""
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

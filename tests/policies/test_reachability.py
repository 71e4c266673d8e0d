"""Reachability of an origin, and the times of its probes."""

from __future__ import annotations

import pytest

from gateway.policies.health.reachability import Contact, ProbePace, Reachability

PACE = ProbePace(first=1.0, longest=4.0)


@pytest.mark.parametrize("contact", [Contact.REFUSES, Contact.SILENT])
def test_a_failed_probe_loses_the_origin_and_an_answer_finds_it(contact: Contact) -> None:
    """Rule: the loss of the origin is reported once, and so is its return."""
    known = Reachability(PACE)
    assert not known.lost
    assert [known.found(contact), known.found(contact), known.lost] == [True, False, True]
    assert [known.found(Contact.ANSWERS), known.found(Contact.ANSWERS), known.lost] == [True, False, False]


def test_how_it_is_lost_may_change() -> None:
    """Rule: a lost origin that falls silent is silent, and no news."""
    known = Reachability(PACE)
    known.found(Contact.REFUSES)
    assert not known.found(Contact.SILENT)
    assert known.contact is Contact.SILENT


def test_pauses_double_until_it_answers() -> None:
    """Rule: the pause between probes doubles up to the longest; an answer resets it."""
    known = Reachability(PACE)
    pauses = []
    for _ in range(4):
        known.found(Contact.SILENT)
        pauses.append(known.pause)
    assert pauses == [1.0, 2.0, 4.0, 4.0]
    known.found(Contact.ANSWERS)
    known.found(Contact.REFUSES)
    assert known.pause == 1.0

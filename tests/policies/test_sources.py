"""The ladder of sources: its order, its ends, and that it is the order in which objects and items were always looked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from gateway.policies.reads.sources import HOMES, InFlight, ReadFacts, ReadKind, Source, next_source
from tests.ladders import (
    FAILED,
    GOOD,
    LARGE,
    LOST,
    ME,
    MISSING,
    SILENT,
    STALE,
    STORED,
    Course,
    Unreached,
    is_patient,
    item_before,
    item_here,
    item_home,
    object_before,
    object_here,
    same,
)  # fmt: skip


def object_by_ladder(course: Course) -> object:
    """As the ladder says."""
    alone = course.now("alone", [False, True])
    tried: tuple[Source, ...] = ()
    lost: list[str] = []
    stale: list[object] = []
    home, before, shared, reached = None if alone else course.home([]), None, True, True
    asked = False
    while True:
        if home is not None and not asked:
            asked, shared = True, bool(course.now("shared", [True, False]))
        facts = ReadFacts(
            ReadKind.OBJECT,
            tried,
            home=home is not None,
            repeats=home is not None and home == before,
            alone=bool(alone) or not shared,
            stale=bool(stale),
            reached=reached,
        )
        step = next_source(facts)
        if step.source is Source.HOME:
            answer = course.ask("home", home, options=[GOOD, SILENT, LOST, STALE])
            if answer == GOOD:
                return home
            if answer == STALE:
                stale.append(home)
                reached = bool(course.now("reached", [True, False]))
            lost += [] if answer == SILENT else [str(home)]
            tried, before = (*tried, Source.HOME), home
            home = course.home([*lost, ME] if course.now("lost", [False, True]) else lost)
        elif step.source is Source.HERE:
            try:
                return object_here(course, patient=step.patient)
            except Unreached:
                if step.patient:
                    return FAILED
            tried, before, home = (*tried, Source.HERE), None, course.home([ME])
        else:
            assert step.source is Source.STALE
            return "stale", stale.pop()


def test_objects_are_looked_for_as_before() -> None:
    """Rule: an object's home and one successor are asked, then this node; stale bytes only if none reaches the origin."""
    assert same(object_before, object_by_ladder) > 1000


_FILLS = {None: InFlight.NONE, "own": InFlight.OWN, "other": InFlight.OTHERS}


def item_by_ladder(course: Course) -> object:
    """As the ladder says."""
    tried: tuple[Source, ...] = ()
    skipped: list[str] = []
    waited, last = False, None
    while True:
        owner = course.now("owner", [None, "own", "other"]) if not tried else None
        home = item_home(course, skipped)
        facts = ReadFacts(
            ReadKind.ITEM, tried, home is not None, alone=is_patient(course), fill=_FILLS[owner], waited=waited
        )
        step = next_source(facts)
        if step.source is Source.HOME:
            skipped.append(str(home))
            outcome = course.ask("home", home, options=[SILENT, STORED, MISSING, FAILED])
            if outcome not in (SILENT, FAILED):
                return outcome
            tried = (*tried, Source.HOME)
            continue
        if step.source is Source.NONE:
            return last
        if step.source is Source.FILL:
            last = course.ask("fill", step.patient, options=[STORED, LARGE, MISSING, FAILED])
            waited = True
            if last == STORED or (owner == "own" and last != FAILED):
                return last
            if owner == "other":
                continue
        else:
            assert step.source is Source.HERE
            last = item_here(course, patient=step.patient)
            if last != FAILED:
                return last
        tried, skipped = (*tried, Source.HERE), [*skipped, ME]


def test_items_are_looked_for_as_before() -> None:
    """Rule: a fill of the same bytes is joined, then up to three homes are asked, then this node reads; if only its own way to
    the origin failed, and no other node was asked before, others are."""
    assert same(item_before, item_by_ladder) > 1000


# --- the node that reads


@pytest.mark.parametrize(
    ("facts", "sources"),
    [
        ({"fill": InFlight.OTHERS}, [Source.FILL]),
        ({"former": True}, [Source.FORMER, Source.ORIGIN, Source.NONE]),
        ({"former": True, "doubted": True}, [Source.ORIGIN, Source.NONE]),
        ({"stale": True}, [Source.ORIGIN, Source.STALE]),
        ({}, [Source.ORIGIN, Source.NONE]),
    ],
    ids=["joined", "moved", "doubted", "stale", "unknown"],
)
def test_the_node_that_reads_asks_former_homes_before_the_origin(
    facts: dict[str, Any], sources: Sequence[Source]
) -> None:
    """Rule: who reads waits for a read in progress, else asks the nodes that may have the bytes, then the origin; nodes are left
    out for a reader who doubts them; stale bytes are given when the origin failed."""
    known, asked = ReadFacts(ReadKind.OBJECT, reads=True, **facts), []
    while not asked or asked[-1] not in (Source.FILL, Source.STALE, Source.NONE):
        asked.append(next_source(known).source)
        known = known._replace(tried=tuple(asked), former=known.former and Source.FORMER not in asked)
    assert asked == sources


# --- whatever the facts are

_BOTH = (False, True)
EVERY = [
    ReadFacts(*values)
    for values in product(
        ReadKind,
        [(), *product([Source.HOME, Source.HERE], repeat=1), *product([Source.HOME, Source.HERE], repeat=2)],
        *[_BOTH] * 3,
        InFlight,
        *[_BOTH] * 6,
    )
]


def test_only_what_is_there_is_asked() -> None:
    """Rule: a source that the facts do not offer is never asked, and each answer says why."""
    for facts in EVERY:
        source, why, _ = next_source(facts)
        assert why
        assert facts.home or source is not Source.HOME
        assert facts.fill is not InFlight.NONE or source is not Source.FILL
        assert facts.stale or source is not Source.STALE
        assert (facts.former and not facts.doubted) or source is not Source.FORMER


def test_nobody_is_asked_for_a_reader_who_is_alone() -> None:
    """Rule: without other nodes this node reads, and waits for the origin as long as it takes."""
    for facts in EVERY:
        step = next_source(facts)
        if facts.alone and not facts.reads:
            assert step.source is not Source.HOME
            assert step.patient or step.source not in (Source.HERE, Source.FILL)


@pytest.mark.parametrize("kind", ReadKind)
def test_every_read_ends(kind: ReadKind) -> None:
    """Rule: whatever fails, and whatever the ring says, homes are asked a limited number of times and this node at most twice."""

    known: list[tuple[Source, ...]] = [()]
    for tried in known:
        for home, repeats, alone, stale, reached in product(_BOTH, repeat=5):
            source = next_source(ReadFacts(kind, tried, home, repeats, alone, stale=stale, reached=reached)).source
            if source is Source.NONE:
                assert Source.HERE in tried
            elif source is not Source.STALE and (*tried, source) not in known:
                known.append((*tried, source))
    assert max(tried.count(Source.HOME) for tried in known) == HOMES[kind]
    assert max(tried.count(Source.HERE) for tried in known) == 1 + (kind is ReadKind.OBJECT)

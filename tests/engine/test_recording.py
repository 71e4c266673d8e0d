"""Profiles are recorded from the keeper's reads, and saved when the catalog takes them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.model.access import ObjectRead
from gateway.model.errors import CatalogUnavailable
from gateway.model.keys import ObjectKey
from gateway.operate.warm import recording
from gateway.operate.warm.recording import LINGER, PAGE, Recorder
from gateway.policies.reads.rules import OFF, Caching, Rules
from gateway.policies.streams.profile import MOST_BLOCKS, ProfileRead, ProfileRecording


class Book:
    """A catalog of one profile; it can be away, and it can have enough."""

    def __init__(self) -> None:
        self.known: tuple[ProfileRecording, ...] = (ProfileRecording("one", "AK", "lake", "", until=100.0),)
        self.saved: list[str] = []
        self.away = self.enough = False
        self.now = 50.0
        rules = Rules([Caching("lake/secret/**", pattern=OFF)])
        self.recorder = Recorder(lambda: self.known, self.save, lambda: rules, 10, lambda: self.now)

    async def save(self, profile: str, reads: Sequence[ProfileRead]) -> bool:
        """Take reads."""
        assert profile == "one"
        assert len(reads) <= PAGE
        if self.away:
            raise CatalogUnavailable("away")
        if self.enough:
            return False
        self.saved += [read.key for read in reads]
        return True

    def read(self, *keys: str, principal: str = "AK") -> None:
        """A client reads."""
        place = [ObjectKey("default", "lake", key) for key in keys]
        self.recorder.hear([ObjectRead(key, 0, 8, 8, True, self.now, principal, 1) for key in place])


async def test_reads_of_the_key_are_saved_once():
    """Rule: the key's reads are saved in order, once; reads of other keys, and those under a rule "off", are not."""
    book = Book()
    book.read("b", "a", "b", "secret/x")
    book.read("c", principal="OTHER")
    await book.recorder.run_once()
    book.read("a", "d")
    await book.recorder.run_once()
    assert book.saved == ["b", "a", "d"]


async def test_reads_wait_for_the_catalog():
    """Rule: reads that the catalog does not take are kept and saved when it is back."""
    book = Book()
    book.away = True
    book.read("a")
    with pytest.raises(CatalogUnavailable):
        await book.recorder.run_once()
    book.read("b")
    book.away = False
    await book.recorder.run_once()
    assert book.saved == ["a", "b"]


async def test_a_lost_catalog_does_not_hold_up_the_end():
    """Rule: a stopping gateway saves the rest, and stops without it if the catalog is away."""
    book = Book()
    book.read("a")
    book.away = True
    await book.recorder.stop()
    book.away = False
    await book.recorder.stop()
    assert book.saved == ["a"]


async def test_many_reads_are_saved_in_pages():
    """Rule: no page is larger than ``PAGE``, and no read is lost between two."""
    book = Book()
    keys = [f"{number:05}" for number in range(2 * PAGE + 1)]
    book.read(*keys)
    await book.recorder.run_once()
    assert book.saved == keys


async def test_reads_of_before_the_end_come_in_after_it():
    """Rule: a recording ends at its time; earlier reads are saved for a while, later ones are not."""
    book = Book()
    book.read("before")
    book.known = (ProfileRecording("one", "AK", "lake", "", until=51.0),)
    book.now = 52.0
    book.read("after")
    await book.recorder.run_once()
    assert book.saved == ["before"]
    book.now = 52.0 + LINGER
    await book.recorder.run_once()
    assert not book.recorder._folding


async def test_a_profile_that_takes_no_more_costs_no_more():
    """Rule: once the catalog refuses a part, because the profile was deleted or is full, no more reads are kept."""
    book = Book()
    book.enough = True
    book.read("a")
    await book.recorder.run_once()
    book.enough = False
    book.read("b")
    await book.recorder.run_once()
    assert book.saved == []
    assert not book.recorder._folding


async def test_memory_is_bounded_while_the_catalog_is_away(monkeypatch: pytest.MonkeyPatch):
    """Rule: however long the catalog is away, no more is kept than a profile may have."""
    monkeypatch.setattr(recording, "FirstReads", lambda size: _first_reads(size, 3))
    assert MOST_BLOCKS > 3
    book = Book()
    book.away = True
    for number in range(10):
        book.read(f"{number}")
    with pytest.raises(CatalogUnavailable):
        await book.recorder.run_once()
    book.away = False
    await book.recorder.run_once()
    assert book.saved == ["0", "1", "2"]


_first_reads = recording.FirstReads

"""Access records: order, batches, folding by blob."""

from gateway.model.access import Access
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.store.shared.accesses import BATCH, DISTINCT, Accesses, Folded, Use, Uses

KEY = ObjectKey("default", "bucket", "key")
CLIENT = OriginIdentity("default", "AK")


def read(blob: bytes, time: float, *, hit: bool = True) -> Access:
    """A read of a blob."""
    return Access(KEY, 0, blob, hit, time, CLIENT)


def test_every_consumer_gets_every_read_in_order():
    """Rule: consumers get all records, hits and misses, in the order of time, at the latest when a batch is full."""
    accesses, one, two = Accesses(), [], []
    accesses.subscribe(one.extend)
    accesses.subscribe(two.extend)
    reads = [read(b"a", float(number), hit=number % 2 == 0) for number in range(BATCH + 1)]
    for access in reads:
        accesses.record(access)
    assert one == reads[:BATCH]
    accesses.hand_out()
    assert (one, two) == (reads, reads)


def test_nothing_is_handed_out_twice():
    """Rule: accesses are handed out once."""
    accesses, seen = Accesses(), []
    accesses.subscribe(seen.append)
    accesses.record(read(b"a", 1.0))
    accesses.hand_out()
    accesses.hand_out()
    assert len(seen) == 1


def test_reads_of_a_blob_are_folded():
    """Rule: a blob has one entry with the number of its hits and the last; misses are counted by object, or by dataset."""
    accesses = Accesses()
    uses = Uses(accesses, lambda: None)
    last, other = read(b"a", 4.0), read(b"b", 2.0)
    missed = read(b"", 3.0, hit=False)
    for access in (read(b"a", 1.0), other, missed, missed._replace(key="d1"), last):
        accesses.record(access)
    assert uses.take_folded() == Folded({b"a": Use(2, last), b"b": Use(1, other)}, {missed.key: 1, "d1": 1})
    assert uses.take_folded() is None


def test_an_announced_blob_is_not_read():
    """Rule: an announced blob counts as used then, without a read."""
    accesses = Accesses()
    uses = Uses(accesses, lambda: None)
    first, second = read(b"a", 1.0, hit=False), read(b"b", 3.0, hit=False)
    uses.expect(first)
    accesses.record(read(b"b", 2.0))
    accesses.hand_out()
    uses.expect(second)
    assert uses.take_folded() == Folded({b"a": Use(0, first), b"b": Use(1, second)}, {})


def test_many_uses_ask_to_be_written():
    """Rule: uses of more blobs than are kept in memory are written at once, and each is written once."""
    accesses, written = Accesses(), []
    uses = Uses(accesses, lambda: written.append(uses.take_folded()))
    for number in range(DISTINCT):
        accesses.record(read(b"%d" % number, 1.0))
    assert [len(folded.uses) for folded in written] == [DISTINCT]
    assert uses.take_folded() is None

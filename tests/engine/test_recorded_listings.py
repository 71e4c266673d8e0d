"""Recorded pages of listings: for how long they count, and for whom."""

from __future__ import annotations

import pytest

from gateway.engine.objects.listings import WantedPage
from gateway.model.keys import ObjectKey, OriginIdentity, rights_in
from gateway.policies.reads.rules import Caching, Rules
from tests.engine.conftest import Bench

RULE = Caching(match="b/data/**", listing=True)
PAGE = WantedPage("default", "b", "list-type=2&prefix=data%2F", RULE.match, RULE.grant)
DOCUMENT = b"<ListBucketResult>one</ListBucketResult>"
KEY = ObjectKey("default", "b", "data/k")


@pytest.fixture(autouse=True)
def recorded(bench: Bench) -> None:
    """A bucket with a prefix whose listings are recorded, by rules that were adopted a while ago."""
    bench.engine.services.rules = Rules([RULE])
    bench.origin.put("b", "data/k", b"1")
    bench.engine.listings.begin(PAGE)
    bench.now[0] += 60


async def keep(bench: Bench, page: WantedPage = PAGE) -> None:
    """Record a page that the origin has just sent."""
    await bench.engine.listings.keep(bench.engine.listings.begin(page), bench.identity, (), DOCUMENT)


async def recall(bench: Bench, identity: OriginIdentity | None = None, page: WantedPage = PAGE) -> bytes | None:
    """The recorded page, if it counts."""
    found = await bench.engine.listings.recall(bench.engine.listings.begin(page), identity or bench.identity)
    return None if found is None else found[1]


async def test_a_page_is_for_whom_the_origin_sent_it_within_the_grant(bench: Bench) -> None:
    """Rule: another identity, another question and the end of the grant ask the origin."""
    await keep(bench)
    assert await recall(bench) == DOCUMENT
    assert await recall(bench, OriginIdentity("default", "other")) is None
    assert await recall(bench, page=PAGE._replace(query="list-type=2")) is None
    bench.now[0] += RULE.grant + 1
    assert await recall(bench) is None


async def test_a_repeated_page_needs_no_index(bench: Bench) -> None:
    """Rule: a page that was just recalled is recalled again without its row, to whom it was sent, until its grant or a write ends
    it."""
    await keep(bench)
    assert await recall(bench) == DOCUMENT
    await bench.engine.services.store._disk.write(lambda connection: connection.execute("DELETE FROM grants"))
    assert await recall(bench) == DOCUMENT
    assert await recall(bench, OriginIdentity("default", "other")) is None
    await bench.engine.forget_from_fleet([KEY])
    assert await recall(bench) is None
    await keep(bench)
    assert await recall(bench) == DOCUMENT
    bench.now[0] += RULE.grant + 1
    assert await recall(bench) is None


async def test_a_page_whose_file_is_gone(bench: Bench) -> None:
    """Rule: a remembered row does not outlive its bytes: the origin is asked."""
    await keep(bench)
    assert await recall(bench) == DOCUMENT
    for path in bench.engine.services.store.directory.root.glob("blobs/*/*"):
        path.unlink()
    bench.engine.services.store.memory.clear()
    bench.engine.services.store.opened.trim()
    assert await recall(bench) is None


async def test_a_write_below_the_prefix_ends_it_and_another_does_not(bench: Bench) -> None:
    """Rule: a write at another node, of a key that the rule matches, forgets the pages of its bucket here."""
    await keep(bench)
    await bench.engine.forget_from_fleet([ObjectKey("default", "b", "elsewhere"), KEY._replace(bucket="c")])
    assert await recall(bench) == DOCUMENT
    await bench.engine.forget_from_fleet([KEY])
    assert await recall(bench) is None


async def test_a_page_listed_during_a_write_does_not_outlive_it(bench: Bench) -> None:
    """Rule: what was asked after a write had begun is forgotten when it ends, even if nobody read the key."""

    async def send():  # type: ignore[no-untyped-def]
        await keep(bench)
        assert await recall(bench) == DOCUMENT
        return await bench.engine.services.origin.send(
            bench.identity, "PUT", "/b/data/k", "", [], body=b"2", content_length=1
        )

    written = await bench.engine.write([KEY], send)
    await written.close()
    assert await recall(bench) is None


async def test_a_page_that_was_asked_before_a_write_is_not_recorded_after_it(bench: Bench) -> None:
    """Rule: the generation is that from before the origin was asked."""
    asked = bench.engine.listings.begin(PAGE)
    await bench.engine.forget_from_fleet([KEY])
    await bench.engine.listings.keep(asked, bench.identity, (), DOCUMENT)
    assert await recall(bench) is None


@pytest.mark.parametrize(("purged", "exact"), [("data/", False), ("elsewhere/", False), ("data/k", True)])
async def test_a_purge_ends_every_page(bench: Bench, purged: str, exact: bool) -> None:
    """Rule: a purge bumps all generations of the node."""
    await keep(bench)
    await bench.store.forget_prefix(ObjectKey("default", "b", purged), exact=exact)
    assert await recall(bench) is None


async def test_a_change_of_rights_ends_the_pages_of_the_bucket(bench: Bench) -> None:
    """Rule: who may list is asked again."""
    await keep(bench)
    await bench.engine.forget_from_fleet([rights_in(KEY)])
    assert await recall(bench) is None


async def test_no_page_from_before_a_change_of_the_rules_counts(bench: Bench) -> None:
    """Rule: writes while no rule recorded listings were not noted."""
    await keep(bench)
    bench.engine.services.rules = Rules()
    await bench.engine.forget_from_fleet([KEY])
    bench.engine.services.rules = Rules([RULE])
    assert await recall(bench) is None


async def test_a_node_that_may_have_missed_writes_believes_no_page_from_before(bench: Bench) -> None:
    """Rule: as with objects, only what was confirmed since then is trusted."""
    await keep(bench)
    bench.engine.services.heard.since = bench.now[0] + 1
    assert await recall(bench) is None


@pytest.mark.parametrize(
    ("globs", "prefix", "match"),
    [
        ([("b/data/**", True)], "b/data/", "b/data/**"),
        ([("b/data/**", True)], "b/data/train/", "b/data/**"),
        ([("b/data/**", True)], "b/dat", None),
        ([("b/data/*", True)], "b/data/", None),
        ([("b/data/tmp/**", False), ("b/data/**", True)], "b/data/", None),
        ([("b/data/tmp/**", False), ("b/data/**", True)], "b/data/train/", "b/data/**"),
        ([("**/*.tmp", False), ("b/data/**", True)], "b/data/", None),
        ([("c/**", False), ("**", True)], "b/", "**"),
    ],
)
def test_which_rule_records_a_listing(globs: list[tuple[str, bool]], prefix: str, match: str | None) -> None:
    """Rule: the first one that may match anything below the prefix, if it records listings and covers the prefix."""
    rule = Rules([Caching(match=glob, listing=listing) for glob, listing in globs]).listing(prefix)
    assert (None if rule is None else rule.match) == match

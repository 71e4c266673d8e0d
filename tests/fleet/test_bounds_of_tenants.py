"""What a tenant may have in Redis: the table in docs/capacity.md, walked with a tenant who stores as much as he can."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.fleet.jobs import pipelines, result_claims, results
from gateway.fleet.jobs.jobs import Beat, Jobs, TooManyJobs
from gateway.fleet.jobs.pipelines import BATCHES, DETAILED, MOST_CHANGES, PROFILE
from gateway.fleet.jobs.result_claims import ResultClaims
from gateway.fleet.jobs.results import ResultUses
from gateway.fleet.redis.tenant_index import TenantIndex
from gateway.model.results import Collection
from gateway.model.units import parse_size
from gateway.policies.fleet.job_limits import JobLimits
from gateway.policies.pools import results_pool
from gateway.policies.space.autocache import StageProfile
from gateway.policies.space.cache_mode import PipelineProfile
from gateway.policies.space.orders import Phase
from gateway.policies.space.pipelines import RankBatches, RankProfile
from gateway.policies.space.probing import PhaseTotals
from gateway.policies.space.read_model import ReadSums
from tests.fleet.job_book import D1, LONG, record
from tests.fleet.pipeline_book import Fleet, profile

Z = "larder:z:"
TABLE = Path(__file__).parents[2] / "docs" / "capacity.md"
T = "tenant-" + "t" * 57
J = "j" * 128
MOST_MARKS = 16


@dataclass(frozen=True)
class Row:
    """A kind of key: its pattern, and the bytes of one key at most."""

    pattern: re.Pattern[str]
    bytes: int


def rows() -> list[Row]:
    """The rows of the table."""
    text = TABLE.read_text().partition("## What tenants have in Redis")[2].partition("\n#")[0]
    found = []
    for line in text.splitlines():
        if line.startswith("| `"):
            key, _, _, size = [cell.strip() for cell in line.strip("|").split("|")]
            pattern = re.sub(r"\\{[A-Z]+\\}", "[^ ]+", re.escape(key.strip("`")))
            found.append(Row(re.compile(pattern), parse_size(size.replace(" ", ""))))
    return found


def largest_beat(rank: int) -> Beat:
    """The longest heartbeat that a rank can send."""
    large = PhaseTotals(2**53, 12345678.123456789, 12345678.123456789, 2**53, 2**53)
    return Beat(rank, 2**31 - 1, dict.fromkeys(Phase, large), 2**53)


async def fill(redis: Redis) -> None:
    """Everything that one tenant can store for one job, and for many pools of results."""
    jobs, ranks = Jobs(redis, Z, LONG), 16
    await jobs.register(replace(record(job=J, tenant=T, ranks=ranks), name="n" * 128, access_key_id="k" * 128))
    for rank in range(ranks):
        await jobs.beat(f"{T}/{J}", largest_beat(rank))
    fleet = Fleet(redis)
    for number in range(40):
        stages = tuple(
            StageProfile(stage, 1 / 3 + stage + number, 1e9 / 3, 2**53) for stage in range(1, MOST_MARKS + 1)
        )
        pools = {stage.stage: f"{number:064x}" for stage in stages}
        read = ReadSums(2**40, 2**53, 1e9 / 3, 1e9 / 3)
        said = PipelineProfile(number % 17, number, 2**53, stages[-1], stages, pools, 8, replace_count(read, number))
        rank = number % DETAILED
        await jobs.beat(f"{T}/{J}", largest_beat(rank), PROFILE.text(RankProfile(2**53, said)))
        await fleet.turn()
    for number in range(MOST_CHANGES + 2):
        for rank in range(ranks):
            report = RankBatches(0.8 / (1 + number % 3), 1e9 / 3, 1 + number % 7, number % 2, 2**31 - 1)
            await jobs.beat(f"{T}/{J}", largest_beat(rank), "", BATCHES.text(report))
        if number <= MOST_CHANGES:
            await fleet.turn()
    await redis.delete(f"{Z}leader")  # no tenant's
    uses, claims = ResultUses(redis, Z, LONG), ResultClaims(redis, Z)
    for number in range(20):
        collection = Collection(T, D1, f"{number:064x}", "c" * 64)
        uses.note(collection, 10, 10, 2**53)
        await claims.take(collection.name, range(1000), "o" * 64, 100.0, T)
    await uses.run_once()


def replace_count(read: ReadSums, number: int) -> ReadSums:
    """Reads of another class of sizes."""
    return read._replace(bytes=min(2**53, read.elements << (number % 14)))


async def test_every_key_of_a_tenant_has_a_row_and_keeps_its_bound(redis: Redis) -> None:
    """Rule: what a tenant's requests store is in the table, and no key is larger than the table says."""
    await fill(redis)
    known = rows()
    seen = set()
    async for key in redis.scan_iter(f"{Z}*"):
        name = key.decode().removeprefix(Z)
        matching = [row for row in known if row.pattern.fullmatch(name)]
        assert matching, f"docs/capacity.md has no row for {name}"
        size = await redis.memory_usage(key, samples=0)
        assert size <= min(row.bytes for row in matching), name
        seen.add(max(matching, key=lambda row: len(row.pattern.pattern)).pattern)
    assert len(seen) >= 14


async def test_a_rank_takes_a_few_hundred_bytes(redis: Redis) -> None:
    """Rule: of a job with many ranks one heartbeat is kept whole; the others cost what their counts do."""
    jobs = Jobs(redis, Z, LONG)
    await jobs.register(record(job=J, tenant=T, ranks=400))
    sizes = []
    for ranks in (200, 400):
        for rank in range(ranks):
            await jobs.beat(f"{T}/{J}", largest_beat(rank))
        sizes.append(await redis.memory_usage(f"{Z}job:{T}/{J}", samples=0))
    assert (sizes[1] - sizes[0]) / 200 < 600
    assert sizes[1] < 400 * 600 + 10_000


async def test_the_ranks_of_a_tenant_are_bounded(redis: Redis) -> None:
    """Rule: all ranks of a tenant's jobs count, also those that a job gains; what ends makes room."""
    jobs = Jobs(redis, Z, LONG, JobLimits(ranks=10))
    await jobs.register(record("a", ranks=6))
    with pytest.raises(TooManyJobs, match="more than 10 ranks"):
        await jobs.register(record("b", ranks=5))
    await jobs.register(record("b", ranks=4))
    with pytest.raises(TooManyJobs):
        await jobs.register(record("a", ranks=7))
    assert await jobs.register(record("a", ranks=6)) is False
    await jobs.register(record("b", ranks=1))
    await jobs.register(record("a", ranks=9))
    await jobs.register(record("a", tenant="u", ranks=10))
    await jobs.remove("t/a")
    await jobs.register(record("c", ranks=9))


async def test_a_tenants_jobs_are_read_page_by_page(redis: Redis) -> None:
    """Rule: pages follow the names, and have the tenant's jobs only, whatever letters its name has."""
    jobs = Jobs(redis, Z, LONG)
    for tenant in ("t", "t*", "[t]", "t?\\"):
        for name in "edcba":
            await jobs.register(record(name, tenant=tenant))
    for tenant in ("t", "t*", "[t]", "t?\\"):
        pages = [await jobs.of_tenant(tenant, after, 2) for after in ("", "b", "d", "e")]
        assert [[job.record.job for job in page] for page in pages] == [["a", "b"], ["c", "d"], ["e"], []]
        assert {job.record.tenant for page in pages for job in page} == {tenant}


async def test_an_index_admits_so_many(redis: Redis) -> None:
    """Rule: beyond the bound, new things of a tenant are refused or end the oldest; known ones are not, nor other tenants'."""
    index = TenantIndex(redis, f"{Z}things:of:", 2, 60_000)
    assert [await index.admit("t", thing) for thing in "abca"] == [True, True, False, True]
    assert await index.admit("u", "c")
    assert await index.enter([("t", "a")]) == []
    assert await index.enter([("u", "c"), ("t", "d")]) == [b"b"]
    short = TenantIndex(redis, f"{Z}short:of:", 1, 1)
    assert await short.admit("t", "a")
    assert 0 < await redis.pttl(f"{Z}things:of:t") <= 60_000


async def test_claims_beyond_the_bound_are_granted_without_being_kept(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: claims promise nothing, so a tenant with too many gets all of them; those that are kept still hold."""
    monkeypatch.setattr(result_claims, "MOST", 10)
    monkeypatch.setattr(result_claims, "COLLECTIONS", 2)
    claims = ResultClaims(redis, Z)
    assert await claims.take("p/a", range(10), "one", 100.0, "t") == {*range(10)}
    assert await claims.take("p/a", range(20), "two", 100.0, "t") == {*range(10, 20)}
    assert await claims.take("p/a", range(10, 20), "one", 100.0, "t") == {*range(10, 20)}
    assert await claims.take("p/b", [1], "one", 100.0, "t") == {1}
    assert await claims.take("p/c", [1], "one", 100.0, "t") == {1}
    assert await claims.take("p/c", [1], "two", 100.0, "t") == {1}
    assert not await redis.exists(f"{Z}claims:p/c")


async def test_claims_whose_time_is_over_make_room(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a full table is cleared of ended claims."""
    monkeypatch.setattr(result_claims, "MOST", 4)
    claims = ResultClaims(redis, Z)
    await claims.take("p/a", range(4), "one", 0.0, "t")
    assert await claims.take("p/a", [9], "one", 100.0, "t") == {9}
    assert await claims.take("p/a", [8], "one", 100.0, "t") == {8}
    assert await claims.take("p/a", [8], "two", 100.0, "t") == set()


async def test_pools_with_results_are_bounded(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: of a tenant's pools, those used last are known to have results."""
    monkeypatch.setattr(pipelines, "MOST_STORED", 3)
    fleet = Fleet(redis)
    for number in range(6):
        for said in (profile(), profile(cache=2, epoch=1)):
            await fleet.decide(f"t/{number}", 0, replace(said, pools={2: f"{number:064x}"}))
    stored = [key async for key in redis.scan_iter(f"{Z}stored:results:*")]
    assert 0 < len(stored) <= 3
    assert f"{Z}stored:{results_pool('t', D1, f'{5:064x}')}".encode() in stored


async def test_used_results_are_bounded(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a tenant cannot make the manager read uses of any number of pools."""
    monkeypatch.setattr(results, "MOST", 3)
    uses = ResultUses(redis, Z, LONG)
    for number in range(6):
        uses.note(Collection("t", D1, f"{number:064x}", "c"), 10, 1, 10)
    uses.note(Collection("u", D1, "0" * 64, "c"), 10, 1, 10)
    await uses.run_once()
    assert sorted(one.tenant for one in (await uses.all()).values()) == ["t", "t", "t", "u"]

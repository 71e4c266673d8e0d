"""Results of pipelines at a real gateway, over the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gateway.model.frames import ItemStatus
from larder.reading.frames import MISSING, OK, Received, index_form
from rig.batches import Stock, bytes_of, decoded, packed, stock, taken
from rig.consistency import files_of
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin
from rig.processes import wait_until
from rig.v1 import GWA, Key, Reply, ask

GWB: Key = ("GWB", "gateway-secret-b")
LIMITED: Key = ("LIMITED", "gateway-secret-l")
READER: Key = ("READER", "gateway-secret-r")
CREDENTIALS: tuple[Mapping[str, Any], ...] = (
    {"access_key_id": GWA[0], "secret_access_key": GWA[1], "tenant": "a"},
    {"access_key_id": GWB[0], "secret_access_key": GWB[1], "tenant": "b"},
    {"access_key_id": LIMITED[0], "secret_access_key": LIMITED[1], "tenant": "a", "allow": ["data/shared/00000[0-4]*"]},
    {"access_key_id": READER[0], "secret_access_key": READER[1], "tenant": "a", "read_only": True},
)
MARK = "ab" * 32
LARGEST = 100_000


def settings_in(origin: FakeOrigin, home: Path, **changes: Any) -> Settings:
    """A gateway that stores elements of at most ``LARGEST`` bytes."""
    extra = f"[results]\nlargest = {LARGEST}\n"
    return Settings(origin.endpoint, home / "cache", **{"credentials": CREDENTIALS, "extra": extra, **changes})


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway of two workers."""
    home = tmp_path_factory.mktemp("results")
    with gateway(settings_in(origin, home, workers=2), home) as started:
        yield started


@pytest.fixture(scope="module")
def shared(origin: FakeOrigin, running: Running, tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """A dataset of thirty items that both tenants have."""
    made = stock(origin, tmp_path_factory.mktemp("files"), "shared", bytes_of(30, 100, "shared"))
    for key in (GWA, GWB):
        made.register(running, key=key)
    return made


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    """A fingerprint that no other test has."""
    return f"{abs(hash(request.node.name)):016x}".ljust(64, "0")


def put(
    running: Running,
    dataset: Stock,
    mark: str,
    elements: Mapping[int, bytes | None],
    key: Key = GWA,
    owner: str = "",
    more: str = "",
) -> Reply:
    """Store elements by index; ``None`` gives a claim up; ``more`` are further parameters."""
    body = index_form(
        [(index, MISSING if one is None else OK, [] if one is None else [one]) for index, one in elements.items()]
    )
    query = f"?name={dataset.name}" + (f"&owner={owner}" if owner else "") + more
    return ask(running, "PUT", f"/v1/datasets/{dataset.id}/results/{mark}{query}", body, key)


def stored(reply: Reply) -> list[str]:
    """The outcome of each element."""
    assert reply.status == 200, reply.body
    return list(reply.json["results"])


def get(running: Running, dataset: Stock, mark: str, indices: Sequence[int], query: str = "", key: Key = GWA) -> Reply:
    """Ask for results."""
    path = f"/v1/datasets/{dataset.id}/results/{mark}/batch?name={dataset.name}{query and '&' + query}"
    return ask(running, "POST", path, packed(indices), key)


def found(reply: Reply, indices: Sequence[int]) -> Received:
    """An answer, which must be whole."""
    assert reply.status == 200, reply.body
    assert int(reply.headers["content-length"]) == len(reply.body)
    return decoded(indices, reply.body)


def read(running: Running, dataset: Stock, mark: str, indices: Sequence[int], key: Key = GWA) -> dict[int, bytes]:
    """The stored ones among some results, by index."""
    received = found(get(running, dataset, mark, indices, key=key), indices)
    assert {failure.status for failure in received.failures.values()} <= {ItemStatus.NOT_RESIDENT}
    return {indices[position]: data for position, data in taken(received).items()}


def statuses(reply: Reply, indices: Sequence[int]) -> dict[int, int]:
    """The statuses of results that an answer does not have, by index."""
    return {indices[position]: failure.status for position, failure in found(reply, indices).failures.items()}


def test_what_is_put_is_read(running: Running, shared: Stock, mark: str) -> None:
    """Rule: every worker serves a result once its PUT is answered; a read lists the missing ones."""
    elements = {index: b"element %d" % index * 100 for index in (3, 0, 29)}
    assert stored(put(running, shared, mark, elements)) == ["stored"] * 3
    for _ in range(8):  # connections go to either worker
        assert read(running, shared, mark, [0, 1, 29, 3]) == elements


def test_the_first_result_stays(running: Running, shared: Stock, mark: str) -> None:
    """Rule: a second PUT of a result changes nothing."""
    assert stored(put(running, shared, mark, {5: b"first"})) == ["stored"]
    assert stored(put(running, shared, mark, {5: b"other", 6: b"six"})) == ["known", "stored"]
    assert read(running, shared, mark, [5, 6]) == {5: b"first", 6: b"six"}


@pytest.mark.parametrize("other", [b"of equal size: B", b"another size"], ids=["equal size", "another size"])
def test_a_result_is_replaced_when_told_so(running: Running, shared: Stock, mark: str, other: bytes) -> None:
    """Rule: with ``replace=1`` every worker serves the new element, and a file of which nothing is left is deleted. A repetition
    changes nothing."""
    first, six, seven, other = (one + mark.encode() for one in (b"of equal size: A", b"six", b"seven", other))
    cache = running.config.parent / "cache"
    assert stored(put(running, shared, mark, {5: first, 6: six})) == ["stored", "stored"]
    before = len(files_of(cache))
    for _ in range(2):
        assert stored(put(running, shared, mark, {5: other, 7: seven}, more="&replace=1")) == ["stored", "stored"]
        for _ in range(8):  # connections go to either worker
            assert read(running, shared, mark, [5, 6, 7]) == {5: other, 6: six, 7: seven}
    assert len(files_of(cache)) == before + 1
    assert stored(put(running, shared, mark, {6: b"new " + six}, more="&replace=1")) == ["stored"]
    wait_until(lambda: len(files_of(cache)) == before + 1, 30, "the removal of the old file")
    assert stored(put(running, shared, mark, {5: first})) == ["known"]


def test_equal_elements_are_stored_once(running: Running, shared: Stock, mark: str) -> None:
    """Rule: elements that a filter dropped, all equal, are one file."""
    before = len(files_of(running.config.parent / "cache"))
    assert (
        stored(put(running, shared, mark, dict.fromkeys(range(30), b"dropped by " + mark.encode()))) == ["stored"] * 30
    )
    assert len(files_of(running.config.parent / "cache")) == before + 1
    assert len(read(running, shared, mark, range(30))) == 30


def test_another_tenant_sees_nothing(running: Running, shared: Stock, mark: str) -> None:
    """Rule: results are a tenant's own, with equal datasets and functions too."""
    put(running, shared, mark, {1: b"of a"})
    assert read(running, shared, mark, [1], key=GWB) == {}
    assert stored(put(running, shared, mark, {1: b"of b"}, GWB)) == ["stored"]
    assert (read(running, shared, mark, [1]), read(running, shared, mark, [1], GWB)) == ({1: b"of a"}, {1: b"of b"})


def test_a_key_reads_and_stores_the_results_of_items_that_it_may_read(
    running: Running, shared: Stock, mark: str
) -> None:
    """Rule: an allow-list that does not cover an item refuses its result, before anything is read or stored."""
    assert stored(put(running, shared, mark, {4: b"four", 5: b"five"}, GWA)) == ["stored"] * 2
    assert read(running, shared, mark, [4], LIMITED) == {4: b"four"}
    refused = [get(running, shared, mark, [4, 5], key=LIMITED), put(running, shared, mark, {6: b"six"}, LIMITED)]
    assert [(reply.status, reply.code, reply.json["index"]) for reply in refused] == [
        (403, "AccessDenied", 5),
        (403, "AccessDenied", 6),
    ]
    assert read(running, shared, mark, [6]) == {}


def test_a_read_only_key_reads_and_stores_nothing(running: Running, shared: Stock, mark: str) -> None:
    """Rule: a read-only key gets stored results, no claims, and a refusal with the reason."""
    put(running, shared, mark, {4: b"four"})
    assert read(running, shared, mark, [4], READER) == {4: b"four"}
    assert statuses(get(running, shared, mark, [7], "claim=60&owner=r", READER), [7]) == {7: ItemStatus.NOT_RESIDENT}
    reply = put(running, shared, mark, {7: b"seven"}, READER)
    assert (reply.status, reply.code) == (403, "AccessDenied")
    assert "read-only" in reply.json["detail"]


def test_elements_that_are_too_large_or_damaged_are_refused_alone(running: Running, shared: Stock, mark: str) -> None:
    """Rule: each element has its own answer."""
    body = bytearray(index_form([(1, OK, [b"fine"]), (2, OK, [bytes(LARGEST + 1)]), (3, OK, [b"broken"])]))
    at = body.index(b"broken")
    body[at : at + 6] = b"kaputt"
    reply = ask(running, "PUT", f"/v1/datasets/{shared.id}/results/{mark}", bytes(body))
    assert stored(reply) == ["stored", "too-large", "damaged"]
    assert read(running, shared, mark, [1, 2, 3]) == {1: b"fine"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda body: body[:-1], "more than the body has"),
        (lambda body: b"LRDX" + body[4:], "preamble"),
        (lambda body: body[:8] + b"\xff\xff\xff\x7f" + body[12:], "at most 1024 results"),
        (lambda body: body[:24] + b"\x01" + body[25:], "contiguous"),
        (lambda body: b"", "less than a preamble"),
    ],
    ids=["cut", "magic", "count", "offset", "empty"],
)
def test_a_malformed_body_is_refused(running: Running, shared: Stock, mark: str, change: Any, says: str) -> None:
    """Rule: a malformed body is refused whole, with the reason."""
    body = change(index_form([(1, OK, [b"one"]), (2, OK, [b"two"])]))
    reply = ask(running, "PUT", f"/v1/datasets/{shared.id}/results/{mark}", body)
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert says in reply.json["detail"]
    assert read(running, shared, mark, [1, 2]) == {}


@pytest.mark.parametrize(
    ("where", "query", "indices", "code", "says"),
    [
        ("batch", "claim=601&owner=x", [1], "InvalidRequest", "claim must be a number of seconds from 0 to 600"),
        ("batch", "claim=1", [1], "InvalidRequest", "owner must have"),
        ("batch", "wait=1", [1], "InvalidRequest", "belong to claim"),
        ("batch", "claim=1&owner=x&wait=nan", [1], "InvalidRequest", "wait must be"),
        ("batch", "take=1", [1], "InvalidRequest", "unknown parameter 'take'"),
        ("batch", "", [1, 1], "InvalidRequest", "appears twice"),
        ("batch", "", [30], "IndexOutOfRange", "items 0 to 29"),
        ("batch", "", range(1025), "TooLarge", "4096"),
    ],
)  # fmt: skip
def test_bad_requests_name_the_field(
    running: Running, shared: Stock, mark: str, where: str, query: str, indices: Sequence[int], code: str, says: str
) -> None:
    """Rule: a problem document names the wrong parameter and its requirement."""
    reply = get(running, shared, mark, indices, query)
    assert reply.code == code
    assert says in reply.json["detail"]


def test_a_put_says_whether_it_replaces_by_one(running: Running, shared: Stock, mark: str) -> None:
    """Rule: any other value of ``replace`` is refused, and nothing is stored."""
    reply = put(running, shared, mark, {1: b"one"}, more="&replace=yes")
    assert (reply.code, "replace must be 1" in reply.json["detail"]) == ("InvalidRequest", True)
    assert read(running, shared, mark, [1]) == {}


def test_the_address_must_have_a_fingerprint_and_a_known_dataset(running: Running, shared: Stock) -> None:
    """Rule: a fingerprint must have 64 hex digits; a request for an unknown dataset asks to register it again."""
    assert get(running, shared, "xyz", [1]).code == "InvalidRequest"
    assert ask(running, "POST", f"/v1/datasets/{'0' * 64}/results/{MARK}/batch", packed([1])).code == "UnknownDataset"
    assert ask(running, "DELETE", f"/v1/datasets/{shared.id}/results/{MARK}").code == "MethodNotAllowed"


def test_a_claim_gives_each_missing_result_to_one_caller(running: Running, shared: Stock, mark: str) -> None:
    """Rule: the first caller gets a missing result to compute, also when it asks again; others get "busy"."""
    put(running, shared, mark, {1: b"one"})
    mine = statuses(get(running, shared, mark, [1, 2, 3], "claim=60&owner=me"), [1, 2, 3])
    assert mine == {2: ItemStatus.CLAIMED, 3: ItemStatus.CLAIMED}
    others = statuses(get(running, shared, mark, [1, 2, 3, 4], "claim=60&owner=you"), [1, 2, 3, 4])
    assert others == {2: ItemStatus.BUSY, 3: ItemStatus.BUSY, 4: ItemStatus.CLAIMED}
    assert statuses(get(running, shared, mark, [2, 4], "claim=60&owner=me"), [2, 4]) == {
        2: ItemStatus.CLAIMED,
        4: ItemStatus.BUSY,
    }


def test_who_waits_gets_the_bytes_when_they_come(running: Running, shared: Stock, mark: str) -> None:
    """Rule: a waiting request is answered with the element as soon as its claimant has put it."""
    get(running, shared, mark, [8], "claim=60&owner=me")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(get, running, shared, mark, [8], "claim=60&owner=you&wait=30")
        put(running, shared, mark, {8: b"eight"}, owner="me")
        reply = waiting.result()
    assert taken(found(reply, [8])) == {0: b"eight"}


def test_a_claim_that_is_given_up_goes_to_who_waits(running: Running, shared: Stock, mark: str) -> None:
    """Rule: a failure ends its claimant's claim only."""
    get(running, shared, mark, [8], "claim=60&owner=me")
    put(running, shared, mark, {8: None}, owner="nobody")
    assert statuses(get(running, shared, mark, [8], "claim=60&owner=you"), [8]) == {8: ItemStatus.BUSY}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(get, running, shared, mark, [8], "claim=60&owner=you&wait=30")
        assert stored(put(running, shared, mark, {8: None}, owner="me")) == ["given-up"]
        assert statuses(waiting.result(), [8]) == {8: ItemStatus.CLAIMED}


def test_the_claim_of_a_killed_job_ends_by_its_time(running: Running, shared: Stock, mark: str) -> None:
    """Rule: a waiting caller gets the claim when the claimant's time is over."""
    get(running, shared, mark, [8], "claim=0.5&owner=killed")
    assert statuses(get(running, shared, mark, [8], "claim=60&owner=you&wait=30"), [8]) == {8: ItemStatus.CLAIMED}


def test_a_damaged_file_is_a_missing_result(running: Running, shared: Stock, mark: str) -> None:
    """Rule: a result whose bytes on disk have changed is dropped, not sent, and can be stored again."""
    element = b"will be damaged " + mark.encode()
    put(running, shared, mark, {9: element})
    cache = running.config.parent / "cache"
    (path,) = [path for path in (cache / "blobs").glob("*/*") if path.read_bytes() == element]
    path.write_bytes(element.upper())
    wait_until(lambda: read(running, shared, mark, [9]) == {}, 30, "both workers to find out")
    assert stored(put(running, shared, mark, {9: element})) == ["stored"]
    assert read(running, shared, mark, [9]) == {9: element}


def test_results_survive_a_kill(origin: FakeOrigin, tmp_path: Path, mark: str) -> None:
    """Rule: after kill -9, every result that was acknowledged is read, and verified first."""
    made = stock(origin, tmp_path, "killed", bytes_of(10, 100, "killed"))
    settings = settings_in(origin, tmp_path)
    elements = {index: bytes_of(1, 5000, index)[0] for index in range(10)}
    with gateway(settings, tmp_path) as first:
        made.register(first)
        assert stored(put(first, made, mark, elements)) == ["stored"] * 10
        first.kill()
    with gateway(settings, tmp_path) as second:
        made.register(second)
        assert read(second, made, mark, range(10)) == elements
        assert second.metric("larder_verified_blobs_total") >= 1  # their page


def test_other_places_are_other_results(origin: FakeOrigin, running: Running, tmp_path: Path, mark: str) -> None:
    """Rule: a registration of equal items under other keys has separate results, because functions see an item's key; registering
    the same places again finds the existing results."""
    bodies = bytes_of(3, 100, "moved")
    here, there = (stock(origin, tmp_path / name, name, bodies) for name in ("here", "there"))
    assert here.id == there.id
    here.register(running)
    put(running, here, mark, {1: b"label here"})
    here.register(running)
    assert read(running, here, mark, [1]) == {1: b"label here"}
    assert ask(running, "DELETE", "/v1/datasets/here").status == 204
    there.register(running)
    assert read(running, there, mark, [1]) == {}


def pool_of_results(running: Running) -> dict[str, Any]:
    """The only results in use, as operators see them; empty before there are some."""
    reply = ask(running, "GET", "/admin/results", key=None, headers={"Authorization": "Bearer token"})
    assert reply.status == 200, reply.body
    return next(iter(reply.json["items"]), {})


def test_a_full_pool_refuses_and_evicts_nothing_of_its_own(origin: FakeOrigin, tmp_path: Path, mark: str) -> None:
    """Rule: results have a pool; elements beyond its target are refused one by one, and stored ones stay."""
    made = stock(origin, tmp_path, "full", bytes_of(40, 100, "full"))
    extra = '[results]\ntenant_percent = 10\nlargest = "1MB"\n[admin]\ntoken = "token"\n'
    settings = settings_in(origin, tmp_path, capacity="20MB", extra=extra, fleet={"heartbeat": "200ms"})
    elements = {index: bytes_of(1, 200_000, index)[0] for index in range(40)}
    with gateway(settings, tmp_path) as alone:
        made.register(alone)
        assert stored(put(alone, made, mark, {0: elements[0]})) == ["stored"]
        wait_until(lambda: pool_of_results(alone).get("target", 0) > 0, 30, "the pool")
        found = pool_of_results(alone)
        target = found["target"]
        assert target <= 2_000_000
        assert (found["tenant"], found["dataset"], found["fingerprint"]) == ("a", made.id, mark)
        assert (found["items"], found["why"], found["order"]) == (40, "benefit", "uniform")
        wait_until(lambda: pool_of_results(alone)["bytes"] == 200_000, 30, "the node to follow the plan")
        assert "full" in stored(put(alone, made, mark, elements))
        kept = read(alone, made, mark, range(40))
        assert 200_000 * len(kept) <= 1.1 * target + 200_000
        assert set(stored(put(alone, made, mark, elements))) == {"known", "full"}
        assert read(alone, made, mark, range(40)) == kept
        assert alone.metric("larder_results_total", result="full") > 0
        held = 200_000 * len(kept)
        wait_until(
            lambda: pool_of_results(alone)["bytes"] == held, 30, "the node's report, with all charged to the pool"
        )


def test_a_gateway_may_store_none(origin: FakeOrigin, tmp_path: Path, mark: str) -> None:
    """Rule: with results.enabled = false every element is refused as full, and no request fails."""
    made = stock(origin, tmp_path, "unshared", bytes_of(2, 100, "unshared"))
    with gateway(settings_in(origin, tmp_path, extra="[results]\nenabled = false\n"), tmp_path) as alone:
        made.register(alone)
        assert stored(put(alone, made, mark, {0: b"zero"})) == ["full"]
        assert read(alone, made, mark, [0]) == {}
        assert alone.metric("larder_results_total", result="full") == 1


def test_each_version_of_an_item_has_a_result(running: Running, shared: Stock, mark: str) -> None:
    """Rule: with versions, results have numbers: the index of the item, plus the number of items times the version. They are
    read, claimed and stored like others, and a key needs the right to read the item."""
    items, versions = 30, "versions=3"
    elements = {4 + items * version: b"version %d" % version for version in range(3)}
    assert stored(put(running, shared, mark, elements, more=f"&{versions}")) == ["stored"] * 3
    wanted = [*elements, 5 + items]
    for key in (GWA, LIMITED):
        received = found(get(running, shared, mark, wanted[:3], versions, key), wanted[:3])
        assert {wanted[position]: data for position, data in taken(received).items()} == elements
    claimed = statuses(get(running, shared, mark, wanted, f"{versions}&claim=60&owner=one"), wanted)
    assert claimed == {35: ItemStatus.CLAIMED}
    assert statuses(get(running, shared, mark, [35, 5], f"{versions}&claim=60&owner=two"), [35, 5]) == {
        35: ItemStatus.BUSY,
        5: ItemStatus.CLAIMED,
    }
    refused = get(running, shared, mark, [4, 35], versions, LIMITED)
    assert (refused.status, refused.code, refused.json["index"]) == (403, "AccessDenied", 5)


@pytest.mark.parametrize("wrong", ["0", "1001", "-1", "two", "", "1e1", "\u00b2"])
def test_a_wrong_number_of_versions_is_refused(running: Running, shared: Stock, mark: str, wrong: str) -> None:
    """Rule: a number out of range is named before anything is read or stored."""
    for reply in (
        get(running, shared, mark, [1], f"versions={quote(wrong)}"),
        put(running, shared, mark, {1: b"one"}, more=f"&versions={quote(wrong)}"),
    ):
        assert (reply.status, reply.code) == (400, "InvalidRequest")
        assert "versions must be a number from 1 to 1000" in reply.json["detail"]


def test_a_number_beyond_all_versions_is_refused(running: Running, shared: Stock, mark: str) -> None:
    """Rule: thirty items with three versions have ninety results, so 90 is none; without versions, 30 is no item."""
    beyond = [
        get(running, shared, mark, [90], "versions=3"),
        put(running, shared, mark, {90: b"one"}, more="&versions=3"),
        get(running, shared, mark, [30]),
        put(running, shared, mark, {30: b"one"}),
    ]
    assert [(reply.status, reply.code) for reply in beyond] == [(400, "IndexOutOfRange")] * 4
    assert ["no result 90" in reply.json["detail"] for reply in beyond] == [True, True, False, False]
    assert ["no item 30" in reply.json["detail"] for reply in beyond] == [False, False, True, True]

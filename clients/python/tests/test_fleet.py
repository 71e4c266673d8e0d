"""A batch requested from several nodes: each item comes once, also when nodes die."""

import pickle
import threading
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest
from batch_wire import ORIGIN_ERROR
from effort import examples
from fake_gateway import ID, FakeBatchGateway, Store, cut, hang, key_of, problem, reset_after, serving
from hypothesis import given, settings
from hypothesis import strategies as st

import larder
from larder.base.ring import Ring
from larder.http.api import Api
from larder.http.fleet import Fleet
from larder.reading.scatter import parts_of

ITEMS = {index: bytes([index % 256]) * (index % 7) for index in range(200)}
KEY = larder.Credentials("key", "secret")
DATASET = larder.DatasetInfo("digits", ID, len(ITEMS), caching="full")
NAMES = ("gw-1", "gw-2", "gw-3")
HOMES = Ring(dict.fromkeys(NAMES, 1)).homes(np.array([key_of(index) for index in ITEMS], np.uint64))
EVERYTHING = list(ITEMS)


class Counts(Counter):
    """Counts events."""

    def add(self, name, value):
        """Add."""
        self[name] += value


@pytest.fixture
def nodes():
    """Three gateways of one fleet."""
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(FakeBatchGateway(Store(dict(ITEMS))))) for _ in NAMES]
        for server in servers:
            server.fleet = dict(zip(NAMES, (other.endpoint for other in servers), strict=True))
        yield servers


def reader_at(server, *, attempts=3, timeout=20.0, **options):
    """A reader that knows the fleet already."""
    retry = larder.Retry(attempts=attempts, base=0)
    reader = larder.BatchReader(server.endpoint, DATASET, credentials=KEY, timeout=timeout, retry=retry, **options)
    look(reader)
    return reader


def look(reader):
    """Refresh the reader's view of the fleet now, instead of in the background."""
    reader.fleet.refresh()


def forget(nodes):
    """Clear the recorded requests."""
    for server in nodes:
        server.asked.clear()


def check(fetched, request):
    """Assert that exactly the requested items came, each with its bytes."""
    assert Counter(fetched.indices.tolist()) == Counter(request)
    assert all(bytes(data) == ITEMS[int(index)] for index, data in zip(fetched.indices, fetched.data, strict=True))
    assert fetched.failed == {}


def homes_of(asked):
    """The homes of the requested items."""
    return {NAMES[HOMES[index]] for index in asked.indices}


def test_each_node_is_asked_for_what_it_is_home_of(nodes):
    """Rule: one request to each home, with its items and no others."""
    stats = larder.Stats()
    check(reader_at(nodes[0], stats=stats).fetch(EVERYTHING), EVERYTHING)
    for name, server in zip(NAMES, nodes, strict=True):
        (asked,) = server.batches()
        assert homes_of(asked) == {name}
    expected = {name: int(np.count_nonzero(number == HOMES)) for number, name in enumerate(NAMES)}
    assert stats.by_node == expected
    assert (stats.requests, stats.split, stats.redirected) == (3, 1, 0)


def test_ways_are_added_up_over_nodes(nodes):
    """Rule: the parts of a batch count by their way; here two gateways have sockets on machines of their own."""
    for server in nodes[:2]:
        server.unix_socket = {"path": "/elsewhere", "inode": 1, "changed_ns": 1}
    stats = larder.Stats()
    check(reader_at(nodes[0], stats=stats).fetch(EVERYTHING), EVERYTHING)
    assert stats.by_way == {"tcp/elsewhere": stats.by_node[NAMES[0]] + stats.by_node[NAMES[1]]}


def test_in_the_order_of_the_request(nodes):
    """Rule: parts from several nodes are merged into the requested order, including repetitions."""
    request = [*reversed(EVERYTHING), 5, 5, 17]
    fetched = reader_at(nodes[0]).fetch(request, ordered=True)
    assert fetched.indices.tolist() == request
    check(fetched, request)


def test_substitutes_in_proportion(nodes):
    """Rule: each home delivers its part of the batch, by how many of the candidates are its own."""
    fetched = reader_at(nodes[0]).fetch(EVERYTHING, mode="substitute", take=20)
    assert len(set(fetched.indices.tolist())) == len(fetched.data) == 20
    takes = [int(server.batches()[0].query["take"]) for server in nodes]
    assert sum(takes) == 20
    for number, take in enumerate(takes):
        assert abs(take - 20 * np.count_nonzero(number == HOMES) / len(ITEMS)) < 1


def test_what_one_home_lacks_the_others_make_up_for(nodes):
    """Rule: a shortfall at one home is requested again from all homes with candidates left."""
    nodes[1].store.lost = dict.fromkeys(EVERYTHING, ORIGIN_ERROR)
    fetched = reader_at(nodes[0]).fetch(EVERYTHING, mode="substitute", take=60)
    assert len(set(fetched.indices.tolist())) == len(fetched.data) == 60
    assert fetched.failed == {}


@settings(max_examples=examples(300))
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
def test_parts(homes, data):
    """Rule: parts are disjoint, cover the candidates, add up to the batch, and are fair to within one."""
    wanted = data.draw(st.integers(0, len(homes)))
    numbers = np.array(homes, np.int16)
    parts = parts_of(("a", "b", "c", "d", "e"), numbers, wanted)
    assert sum(part.take for part in parts) == wanted
    for part in parts:
        mine = np.flatnonzero(numbers == "abcde".index(part.node))
        assert np.array_equal(part.places, mine)
        assert 0 < part.take <= len(mine)
    for number, name in enumerate("abcde"):
        take = sum(part.take for part in parts if part.node == name)
        assert abs(take - wanted * homes.count(number) / len(homes)) < 1


def test_one_node_is_asked_as_ever(nodes):
    """Rule: a fleet of one node, or a gateway without one, gets the very requests that it got before; no keys are read."""
    alone = nodes[0]
    for fleet in ({}, {"gw-1": alone.endpoint}):
        alone.fleet, alone.looks = fleet, 0
        reader = reader_at(alone)
        assert alone.looks == len(fleet) or not fleet
        forget(nodes)
        check(reader.fetch(EVERYTHING), EVERYTHING)
        (asked,) = alone.batches()
        assert asked.indices == EVERYTHING


def test_splitting_can_be_switched_off(nodes):
    """Rule: ``split=False`` does not ask for the fleet's nodes."""
    retry = larder.Retry(attempts=1)
    reader = larder.BatchReader(nodes[0].endpoint, DATASET, credentials=KEY, retry=retry, split=False)
    check(reader.fetch(EVERYTHING), EVERYTHING)
    assert [server.looks for server in nodes] == [0, 0, 0]


def test_the_first_batch_does_not_wait_for_the_fleet(nodes):
    """Rule: the fleet is looked up in the background after the first batch; later batches are split."""
    retry = larder.Retry(attempts=1)
    reader = larder.BatchReader(nodes[0].endpoint, DATASET, credentials=KEY, retry=retry)
    check(reader.fetch(EVERYTHING), EVERYTHING)
    assert [len(server.batches()) for server in nodes] == [1, 0, 0]
    deadline = threading.Event()
    while reader.fleet.view is None:
        assert not deadline.wait(0.01)
    forget(nodes)
    check(reader.fetch(EVERYTHING), EVERYTHING)
    assert [len(server.batches()) for server in nodes] == [1, 1, 1]


def test_behind_a_load_balancer(nodes):
    """Rule: if a node cannot be reached from here, or its address is another server's, the one address is used."""
    stranger = FakeBatchGateway(Store(dict(ITEMS)))
    with serving(stranger):
        for elsewhere in ("http://127.0.0.1:9", stranger.endpoint):
            nodes[0].fleet["gw-3"] = elsewhere
            forget(nodes)
            check(reader_at(nodes[0]).fetch(EVERYTHING), EVERYTHING)
            assert [len(server.batches()) for server in nodes] == [1, 0, 0]


def test_another_ring_is_left_to_the_gateways(nodes):
    """Rule: a client that does not know how homes are computed asks the one address."""
    for server in nodes:
        server.ring = 2
    reader = reader_at(nodes[0])
    forget(nodes)
    check(reader.fetch(EVERYTHING), EVERYTHING)
    assert [len(server.batches()) for server in nodes] == [1, 0, 0]


def test_who_came_by_tls_stays_with_tls(nodes, monkeypatch):
    """Rule: a reader with an https address does not use a fleet's plain HTTP addresses."""
    fleet = Fleet(Api("https://gateway.example", credentials=KEY), DATASET)
    listed = [
        {"id": name, "address": server.endpoint, "capacity": 1, "state": "READY"}
        for name, server in zip(NAMES, nodes, strict=True)
    ]
    monkeypatch.setattr("larder.http.fleet._asked", lambda api: {"ring": 1, "nodes": listed})
    fleet.refresh()
    assert fleet.view is None
    assert [server.looks for server in nodes] == [0, 0, 0]


@pytest.mark.parametrize("dead", [0, 1, 2])
@pytest.mark.parametrize("mode", ["exact", "substitute"])
def test_a_dead_node(nodes, dead, mode):
    """Rule: a dead node's items come from the others in the same batch, and it is not asked again until it is well."""
    stats = larder.Stats()
    reader = reader_at(nodes[0], attempts=1, stats=stats)
    nodes[dead].dead = True
    take = None if mode == "exact" else 150
    for _ in range(3):
        fetched = reader.fetch(EVERYTHING, mode=mode, take=take)
        assert len(fetched.data) == len(set(fetched.indices.tolist())) == (take or len(EVERYTHING))
    assert stats.redirected == 1
    assert reader.fleet.excluded() == {NAMES[dead]}


def test_a_node_that_comes_back(nodes):
    """Rule: a node that was left out is asked again when it is well: not before two seconds, and found so in the background."""
    now = [0.0]
    reader = reader_at(nodes[0])
    fleet = reader.fleet
    fleet._neighbours.clock = lambda: now[0]
    nodes[1].dead = True
    check(reader.fetch(EVERYTHING), EVERYTHING)
    nodes[1].dead = False
    for moment, out in [(1.0, {"gw-2"}), (1.9, {"gw-2"}), (2.1, set())]:
        now[0] = moment
        fleet.refresh()
        assert fleet.excluded() == out
    forget(nodes)
    check(reader.fetch(EVERYTHING), EVERYTHING)
    assert [len(server.batches()) for server in nodes] == [1, 1, 1]


def test_a_node_that_leaves_and_one_that_joins(nodes):
    """Rule: the next look finds the present nodes; homes are computed among these."""
    reader = reader_at(nodes[0])
    for server in nodes:
        del server.fleet["gw-2"]
    look(reader)
    forget(nodes)
    check(reader.fetch(EVERYTHING), EVERYTHING)
    assert [len(server.batches()) for server in nodes] == [1, 0, 1]
    for server in nodes:
        server.fleet["gw-2"] = nodes[1].endpoint
    look(reader)
    forget(nodes)
    check(reader.fetch(EVERYTHING), EVERYTHING)
    assert [len(server.batches()) for server in nodes] == [1, 1, 1]


def test_the_gateway_that_was_given_dies(nodes):
    """Rule: when the given gateway dies, the other nodes serve the batches and list the fleet."""
    reader = reader_at(nodes[0], attempts=1)
    nodes[0].dead = True
    for server in nodes[1:]:
        del server.fleet["gw-1"]
    for _ in range(3):
        check(reader.fetch(EVERYTHING), EVERYTHING)
    look(reader)
    assert reader.fleet.view.ring.ids == ("gw-2", "gw-3")
    assert reader.fleet.excluded() == set()


def test_everybody_is_dead(nodes):
    """Rule: when no node answers, the error comes after the same patience as with one gateway."""
    reader = reader_at(nodes[0], attempts=2)
    for server in nodes:
        server.dead = True
    with pytest.raises(larder.GatewayUnavailable):
        reader.fetch(EVERYTHING)
    for server in nodes:
        server.dead = False
    check(reader.fetch(EVERYTHING), EVERYTHING)


@pytest.mark.parametrize("fault", ["cut", "reset", "busy"])
def test_a_fault_at_one_node(nodes, fault):
    """Rule: complete items count, the rest is requested again; a fault anywhere in the answer repeats no item."""
    for place in range(0, 400, 37):
        reader = reader_at(nodes[0])
        made = {"cut": cut(place), "reset": reset_after(place), "busy": problem(503, "SlowDown")}
        nodes[2].faults = [made[fault]]
        check(reader.fetch(EVERYTHING), EVERYTHING)


def test_a_node_that_hangs(nodes):
    """Rule: a node that falls silent is given up after the timeout, and the others deliver its items."""
    release = threading.Event()
    reader = reader_at(nodes[0], timeout=0.5)
    nodes[1].faults = [hang(release)]
    try:
        check(reader.fetch(EVERYTHING), EVERYTHING)
        assert reader.fleet.excluded() == {"gw-2"}
    finally:
        release.set()


FAULTS = st.sampled_from(["none", "dead", "cut", "reset", "busy"])


@settings(max_examples=examples(40))
@given(
    st.lists(st.lists(st.tuples(FAULTS, st.integers(0, 600)), max_size=3), min_size=3, max_size=3),
    st.sampled_from(["exact", "substitute"]),
    st.integers(1, 200),
    st.integers(0, 2),
)
def test_every_item_once_whatever_happens(faults, mode, take, alive):
    """Rule: while one node is alive, a batch is complete and has no item twice, under any faults of the others."""
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(FakeBatchGateway(Store(dict(ITEMS))))) for _ in NAMES]
        for server in servers:
            server.fleet = dict(zip(NAMES, (other.endpoint for other in servers), strict=True))
        reader = reader_at(servers[alive], attempts=20)
        for number, (server, planned) in enumerate(zip(servers, faults, strict=True)):
            for what, place in planned:
                if what == "dead" and number != alive:
                    server.dead = True
                made = {"cut": cut(place), "reset": reset_after(place), "busy": problem(503, "SlowDown")}.get(what)
                if made is not None:
                    server.faults.append(made)
        for _ in range(2):
            fetched = reader.fetch(EVERYTHING, mode=mode, take=take if mode == "substitute" else None)
            assert len(fetched.data) == len(set(fetched.indices.tolist()))
            assert len(fetched.data) == (take if mode == "substitute" else len(EVERYTHING))
            assert all(bytes(d) == ITEMS[int(i)] for i, d in zip(fetched.indices, fetched.data, strict=True))
        reader.close()


def test_a_refusal_is_not_gone_around(nodes):
    """Rule: a node's refusal is raised without asking another node, which would refuse too."""
    reader = reader_at(nodes[0])
    nodes[1].faults = [problem(403, "AccessDenied", "not yours")]
    with pytest.raises(larder.RequestRefused, match="not yours"):
        reader.fetch(EVERYTHING)


def test_a_node_that_does_not_know_the_dataset(nodes):
    """Rule: another node that does know it delivers."""
    reader = reader_at(nodes[0])
    nodes[1].faults = [problem(404, "UnknownDataset")]
    check(reader.fetch(EVERYTHING), EVERYTHING)


def test_a_dataset_that_died_with_the_gateway_that_was_given(nodes, tmp_path):
    """Rule: a dataset that no living node knows is registered again, at one that lives."""
    file = tmp_path / "digits.parquet"
    file.write_bytes(b"PAR1 and so on")
    reader = reader_at(nodes[0], attempts=1, digest_file=file)
    nodes[0].dead = True
    document = {"name": DATASET.name, "id": DATASET.id, "items": DATASET.items, "bytes": 1, "caching": "full"}
    document |= {"plan": 1, "resident": 0}
    for server in nodes[1:]:
        server.faults = [problem(404, "UnknownDataset")]
        server.other = lambda handler, asked: handler.send_json(document, 201)
    check(reader.fetch(EVERYTHING), EVERYTHING)
    assert [asked.body for server in nodes[1:] for asked in server.asked if asked.method == "PUT"] == [
        file.read_bytes()
    ]


def test_a_dataset_that_nobody_knows(nodes):
    """Rule: without a digest file that is an error, and no node is left out for it."""
    reader = reader_at(nodes[0])
    for server in nodes:
        server.faults = [problem(404, "UnknownDataset", "register it again")]
    with pytest.raises(larder.UnknownDataset, match="register it again"):
        reader.fetch(EVERYTHING)
    assert reader.fleet.excluded() == set()


def test_keys_that_are_not_told(nodes):
    """Rule: a reader that may not see all items' homes uses the one address."""
    reader = larder.BatchReader(nodes[0].endpoint, DATASET, credentials=KEY, retry=larder.Retry(attempts=1))
    nodes[0].keys = problem(403, "AccessDenied")
    look(reader)
    check(reader.fetch(EVERYTHING), EVERYTHING)
    assert [len(server.batches()) for server in nodes] == [1, 0, 0]


def test_connections_are_kept(nodes):
    """Rule: each node is asked over a connection that lasts, batch after batch."""
    reader = reader_at(nodes[0])
    for _ in range(5):
        reader.fetch(EVERYTHING)
    assert [len({asked.connection for asked in server.batches()}) for server in nodes] == [1, 1, 1]


def test_threads_share_a_reader(nodes):
    """Rule: many threads fetch at once with one reader, and each gets its own."""
    reader, failures = reader_at(nodes[0]), []

    def work(start):
        request = EVERYTHING[start : start + 40]
        for _ in range(10):
            try:
                check(reader.fetch(request), request)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(0, 160, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_pickling(nodes):
    """Rule: a copy starts without the fleet's nodes, and discovers them itself."""
    reader = reader_at(nodes[0])
    reader.fetch(EVERYTHING)
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.fleet.view is None
    look(copy)
    forget(nodes)
    check(copy.fetch(EVERYTHING), EVERYTHING)
    assert [len(server.batches()) for server in nodes] == [1, 1, 1]

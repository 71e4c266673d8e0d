"""Pipelines at a fake gateway: gateways without results, and state kept over epochs."""

import pytest
from fake_gateway import ID, FakeBatchGateway, Store, problem, serving
from pipeline_steps import Adding, number

import larder
from larder.base.dataset import DatasetInfo
from larder.base.errors import LarderWarning
from larder.reading.fallback import Probation
from larder.reading.frames import MEDIA_TYPE, MISSING, OK, index_form
from larder.reading.results import GatewayResults, ResultNames

ITEMS = 40
NUMBERS = DatasetInfo("numbers", ID, ITEMS)
ACCESS = larder.Access(credentials=larder.Credentials("key", "secret"), split=False)


def plain(status, text):
    """An answer of something else than a gateway, such as a proxy."""
    return lambda handler, asked: handler.send(status, text, Content_Type="text/plain")


@pytest.fixture
def server():
    """A gateway with numbers."""
    with serving(FakeBatchGateway(Store({index: b"%d" % index for index in range(ITEMS)}))) as running:
        yield running


def pipeline_at(server, workers, **options):
    """A pipeline over its numbers, with a mark."""
    options = {"endpoint": server.endpoint, "access": ACCESS, "workers": workers, "seed": 1, **options}
    return larder.pipeline(NUMBERS, **options).map(number).autocache()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "answer",
    [
        problem(404, "NotFound", "no such address"),
        problem(405, "MethodNotAllowed"),
        problem(501, "NotImplemented"),
        plain(404, b"404 page not found"),
        plain(501, b"Not Implemented"),
    ],
    ids=["404", "405", "501", "plain 404", "plain 501"],
)
def test_a_gateway_without_results_is_said_once(server, workers, answer):
    """Rule: all epochs compute, with one warning for all workers."""
    server.results = answer
    pipeline = pipeline_at(server, workers, cache=2)
    with pytest.warns(LarderWarning) as said:
        epochs = [sorted(pipeline) for _ in range(3)]
    pipeline.close()
    assert epochs == [list(range(ITEMS))] * 3
    (warning,) = said
    assert "results of stage 2, autocache() are computed: the gateway at" in str(warning.message)
    assert f"{server.endpoint} has no results of pipelines" in str(warning.message)


@pytest.mark.parametrize("answer", [problem(404, "NotFound"), plain(404, b"404 page not found")])
def test_a_gateway_without_results_is_asked_again(server, answer):
    """Rule: it is left alone for a while, twice as long each time: a proxy's stray 404 costs a second, and an older gateway one
    request a minute. When it answers, results are read and stored again."""
    now = [0.0]
    results = GatewayResults(server.endpoint, NUMBERS, ResultNames("cd" * 32, "me"), credentials=ACCESS.credentials)
    results._probation = Probation(lambda: now[0])
    server.results = answer
    for time, requests in ((0.0, 1), (0.9, 1), (1.1, 2), (3.0, 2), (3.2, 3), (3.3, 3)):
        now[0] = time
        assert results.get([1, 2]).elements == {}
        assert results.put({1: [b"one"]}).refused == {"refused": 1}
        assert "has no results of pipelines (404)" in results.unread
        assert len(server.asked) == requests
    now[0] = 60.0
    server.results = lambda handler, asked: handler.send(
        200, index_form([(1, OK, [b"one"]), (2, MISSING, [])]), Content_Type=MEDIA_TYPE
    )
    assert results.get([1, 2]).elements == {1: b"one"}
    assert results.unread == ""
    results.close()


def test_answers_with_results_are_timed(server):
    """Rule: from the request to the verified elements; a gateway that does not answer takes no time of a read."""
    results = GatewayResults(server.endpoint, NUMBERS, ResultNames("cd" * 32, "me"), credentials=ACCESS.credentials)
    server.results = lambda handler, asked: handler.send(200, index_form([(1, OK, [b"one"])]), Content_Type=MEDIA_TYPE)
    found = results.get([1])
    assert found.cpu_seconds > 0
    assert found.seconds > 0
    server.results = problem(404, "NotFound")
    lost = results.get([1])
    assert (lost.seconds, lost.cpu_seconds) == (0, 0)
    results.close()


def test_an_element_that_no_request_can_carry_is_refused_alone(server):
    """Rule: it counts as too large, and its claim is ended; others are stored as before."""
    asked = []

    def answer(handler, request):
        asked.append(request)
        if len(asked) == 1:
            problem(413, "TooLarge", "The body may have at most 10 bytes.")(handler, request)
        else:
            handler.send(200, b'{"results": ["stored"]}', Content_Type="application/json")

    server.results = answer
    results = GatewayResults(server.endpoint, NUMBERS, ResultNames("cd" * 32, "me"), credentials=ACCESS.credentials)
    assert results.put({1: [b"one"]}).refused == {"too-large": 1}
    assert len(asked) == 2
    assert results.put({2: [b"two"]}).stored == 1
    assert results.unstored == ""


def test_a_broken_gateway_is_no_older_one(server):
    """Rule: another error costs this epoch's results only."""
    server.results = plain(403, b"a proxy")
    pipeline = pipeline_at(server, 0, cache=2)
    with pytest.warns(LarderWarning, match="some results of stage 2, autocache.* the gateway did not take them"):
        assert sorted(pipeline) == list(range(ITEMS))
    assert pipeline.stats()["results"]["stage 2, autocache()"]["refused"] == ITEMS
    pipeline.close()


def test_a_pipeline_without_workers_keeps_its_connection(server):
    """Rule: all epochs of ``workers=0`` read through one client, and closing the pipeline closes its connection."""
    pipeline = pipeline_at(server, 0)
    for _ in range(3):
        assert sorted(pipeline) == list(range(ITEMS))
    before = {asked.connection for asked in server.batches()}
    assert len(before) == 1
    pipeline.close()
    assert sorted(pipeline) == list(range(ITEMS))
    assert len({asked.connection for asked in server.batches()}) == 2
    pipeline.close()


def test_a_pipeline_without_workers_computes_with_changed_functions(server):
    """Rule: the client is reused; each epoch uses the function's current state, and no results of its earlier one."""
    server.results = problem(404, "NotFound")
    add = Adding(0)
    pipeline = (
        larder.pipeline(NUMBERS, endpoint=server.endpoint, access=ACCESS, workers=0, cache=2).map(add).autocache()
    )

    def epoch(more):
        add.more = more
        return sorted(value for value, _ in pipeline)

    with pytest.warns(LarderWarning, match="has no results of pipelines"):
        epochs = [epoch(more) for more in (0, 5, 7)]
    assert epochs == [list(range(more, ITEMS + more)) for more in (0, 5, 7)]
    assert len({asked.path for asked in server.asked if "/results/" in asked.path}) == 3
    assert len({asked.connection for asked in server.batches() if "/results/" not in asked.path}) == 1
    assert len(pipeline._runtime._inline._marks) == 1
    pipeline.close()


def test_a_gateway_that_knows_no_versions_costs_results_alone(server):
    """Rule: it refuses the unknown parameter, so elements are computed, with one warning that has its reason."""
    server.results = problem(400, "InvalidRequest", "unknown parameter 'versions'")
    options = {"endpoint": server.endpoint, "access": ACCESS, "workers": 0, "cache": 2}
    pipeline = larder.pipeline(NUMBERS, **options).map(number).autocache(versions=2)
    with pytest.warns(LarderWarning, match=r"versions=2\) are computed: .*unknown parameter 'versions'") as said:
        epochs = [sorted(pipeline) for _ in range(3)]
    assert (epochs, len(said)) == ([list(range(ITEMS))] * 3, 1)
    requests = [asked for asked in server.asked if "/results/" in asked.path]
    assert [asked.query["versions"] for asked in requests] == ["2"]
    pipeline.close()

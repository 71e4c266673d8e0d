"""Pipelines whose marks are stored at a real gateway."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import larder
from larder.base.errors import LarderWarning, StageFailed
from larder.http.credentials import Credentials
from larder.pipelines import Pipeline
from larder.pipelines.fingerprint import fingerprints
from larder.reading.source import Access
from rig.batches import Stock, bytes_of, stock
from rig.gateways import Running, Settings, gateway
from rig.origin import ALICE, FakeOrigin
from tests.pipelines import result_steps
from tests.pipelines.result_steps import Noting, even, in_place, indices, labelled, train

ITEMS = 60
SIZE = 300
MARK = 2
WHOLE = Counter(range(ITEMS))


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway."""
    home = tmp_path_factory.mktemp("results")
    with gateway(Settings(origin.endpoint, home / "cache"), home) as started:
        yield started


@pytest.fixture
def items(origin: FakeOrigin, running: Running, tmp_path: Path, request: pytest.FixtureRequest) -> Stock:
    """A dataset of this test's own."""
    made = stock(
        origin, tmp_path / "files", f"items-{abs(hash(request.node.name))}", bytes_of(ITEMS, SIZE, request.node.name)
    )
    made.register(running)
    return made


def access() -> Access:
    """With the key of the tests."""
    return Access(credentials=Credentials("GWA", "gateway-secret-a"), timeout=20.0)


def pipeline(running: Running, items: Stock, step: Any, **options: Any) -> Pipeline:
    """A pipeline with one mark, by default in this process."""
    options = {"workers": 0, "cache": MARK, "access": access(), "endpoint": running.endpoint, "seed": 3, **options}
    return larder.pipeline(items.name, **options).map(step).autocache()


def expected(items: Stock, factor: int = 1, more: int = 0) -> dict[int, list[int]]:
    """The expected elements, by index."""
    return {index: [factor * byte + more for byte in body] for index, body in enumerate(items.bodies)}


def values(elements: Iterator[Any] | Pipeline) -> dict[int, list[int]]:
    """The elements of an epoch by index, each of which must come once."""
    found = [(element["index"], element["data"].tolist()) for element in elements]
    assert len({index for index, _ in found}) == len(found)
    return dict(found)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_stores_and_the_next_ones_read(running: Running, items: Stock, tmp_path: Path, workers: int) -> None:
    """Rule: each element is computed once, for any number of workers; all epochs have the same elements."""
    step = Noting(tmp_path / "computed")
    made = pipeline(running, items, step, workers=workers)
    for _ in range(3):
        assert values(made) == expected(items)
    assert step.computed() == WHOLE
    results = made.stats()["results"]["stage 2, autocache()"]
    assert results == {"read": 2 * ITEMS, "computed": ITEMS, "stored": ITEMS, "refused": 0, "damaged": 0}
    made.close()


def test_a_second_job_reads_what_the_first_one_stored(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: equal functions share results, and random numbers after the mark are each epoch's own."""
    step = Noting(tmp_path / "computed")
    assert values(pipeline(running, items, step)) == expected(items)
    assert values(pipeline(running, items, Noting(tmp_path / "computed"), seed=4)) == expected(items)
    assert step.computed() == WHOLE


def test_a_changed_function_has_other_results(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: another argument is another fingerprint, so every element is computed again."""
    assert values(pipeline(running, items, Noting(tmp_path / "one", 1))) == expected(items)
    changed = Noting(tmp_path / "two", 2)
    assert values(pipeline(running, items, changed)) == expected(items, 2)
    assert changed.computed() == WHOLE


def test_what_workers_see_otherwise_is_not_stored(
    running: Running, items: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: workers do not see a global that only the training process has changed. They compute with its first value, say so and
    store nothing, so that a pipeline that sees the new value does not read the old results."""
    monkeypatch.setattr(result_steps, "FACTOR", 5)
    elsewhere = pipeline(running, items, result_steps.scaled, workers=1)
    with pytest.warns(LarderWarning, match="workers see other code or values than the training process"):
        assert values(elsewhere) == expected(items)
    assert elsewhere.stats()["results"]["stage 2, autocache()"]["stored"] == 0
    elsewhere.close()
    assert values(pipeline(running, items, result_steps.scaled)) == expected(items, 5)


def test_a_replaced_dataset_has_other_results(origin: FakeOrigin, running: Running, tmp_path: Path) -> None:
    """Rule: labels come from keys, so equal items under other keys have results of their own, and so have items without keys."""
    bodies = bytes_of(8, SIZE, "labels")
    for name in ("cats", "dogs"):
        made = stock(origin, tmp_path / name, name, bodies)
        made.register(running)
        for _ in range(2):
            found = sorted(pipeline(running, made, labelled, keys=True))
            assert found == [(f"{name}/{index:06d}.bin", SIZE) for index in range(8)]


def test_partial_caches_are_used(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: an interrupted epoch leaves its stored elements; the rest is computed."""
    step = Noting(tmp_path / "computed")
    first = pipeline(running, items, step)
    assert len(list(islice(iter(first), ITEMS // 2))) == ITEMS // 2
    first.close()
    before = sum(step.computed().values())
    again = pipeline(running, items, step)
    assert values(again) == expected(items)
    assert again.stats()["results"]["stage 2, autocache()"]["read"] > 0
    assert sum(step.computed().values()) - before < ITEMS


def test_stages_after_the_mark_do_not_change_what_is_stored(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: a function that overwrites its argument's arrays works on a copy, when computed and when read."""
    step = Noting(tmp_path / "computed")
    made = pipeline(running, items, step).map(in_place)
    for _ in range(2):
        assert values(made) == expected(items, more=1)
    assert values(pipeline(running, items, step)) == expected(items)
    assert step.computed() == WHOLE


def test_dropped_elements_are_stored_as_such(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: elements dropped by a filter before the mark are stored as dropped: not computed again, not delivered."""
    step = Noting(tmp_path / "computed")
    options = {"workers": 0, "cache": 3, "access": access(), "endpoint": running.endpoint}
    made = larder.pipeline(items.name, **options).map(step).filter(even).autocache().map(indices)
    for _ in range(2):
        assert sorted(made) == list(range(0, ITEMS, 2))
    assert step.computed() == WHOLE
    assert made.stats()["dropped"] == ITEMS


def test_a_failed_element_is_not_stored(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: a failing element raises in every epoch; the others are stored, and no reader waits for it."""
    step = Noting(tmp_path / "computed", fails=7)
    skipping = pipeline(running, items, step, on_error="skip")
    for _ in range(2):
        assert values(skipping) == {index: data for index, data in expected(items).items() if index != 7}
    assert step.computed() == WHOLE + Counter([7])
    with pytest.raises(StageFailed, match="told to"):
        list(pipeline(running, items, step))


def test_two_jobs_at_once_compute_each_element_once(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: of two jobs that begin together, each computes a part, and both have every element."""
    step = Noting(tmp_path / "computed", seconds=0.01)
    context = multiprocessing.get_context("forkserver")
    found = context.SimpleQueue()
    jobs = [context.Process(target=train, args=(running.endpoint, items.name, step, access(), found)) for _ in range(2)]
    for job in jobs:
        job.start()
    came = [found.get() for _ in jobs]
    for job in jobs:
        job.join()
    sums = [(index, sum(data)) for index, data in sorted(expected(items).items())]
    assert came == [sums, sums]
    assert step.computed() == WHOLE


def test_a_gateway_that_is_killed_costs_computations_only(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: kill -9 in the middle of an epoch, and a restart: every element comes once, and stored ones are read afterwards."""
    home = tmp_path / "home"
    settings = Settings(origin.endpoint, home / "cache")
    made = stock(origin, tmp_path / "files", "killed", bytes_of(ITEMS, SIZE, "killed"))
    step = Noting(tmp_path / "computed")
    with gateway(settings, home) as first:
        made.register(first)
        port = first.port
        epoch = pipeline(first, made, step)
        elements = iter(epoch)
        came = [next(elements) for _ in range(20)]
        first.kill()
        settings.server = {"port": port}
        with gateway(settings, home) as second:
            made.register(second)
            came += list(elements)
            assert values(iter(came)) == expected(made)
            assert values(pipeline(second, made, step)) == expected(made)
            assert epoch.stats()["results"]["stage 2, autocache()"]["computed"] == ITEMS
            again = pipeline(second, made, step)
            assert values(again) == expected(made)
            assert again.stats()["results"]["stage 2, autocache()"]["read"] == ITEMS


def test_without_a_gateway_everything_is_computed(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: when the gateway is permanently down, items come from the store and marks are computed: whole epochs, one warning."""
    made = stock(origin, tmp_path / "files", "gone", bytes_of(ITEMS, SIZE, "gone"))
    step = Noting(tmp_path / "computed")
    store = larder.S3(origin.endpoint, credentials=Credentials(ALICE.access_key_id, ALICE.secret_access_key))
    outage = {"fallback": store, "digest_file": made.file, "retry": larder.Retry(attempts=1)}
    with gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as going:
        made.register(going)
        epoch = pipeline(going, made, step, access=replace(access(), **outage))
        elements = iter(epoch)
        came = list(islice(elements, 20))
    with pytest.warns(LarderWarning) as said:
        epochs = [values(chain(came, elements)), values(epoch)]
    assert epochs == [expected(made)] * 2
    assert step.computed() == WHOLE + WHOLE
    texts = [
        str(each.message) for each in said if "read from their origin" not in str(each.message)
    ]  # once per process
    assert texts == ["some results of stage 2, autocache() are computed in every epoch: the gateway did not take them"]


def test_a_gateway_that_stores_nothing_is_said_once(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: every epoch computes, with one warning for all workers and epochs."""
    made = stock(origin, tmp_path / "files", "full", bytes_of(ITEMS, SIZE, "full"))
    step = Noting(tmp_path / "computed")
    settings = Settings(origin.endpoint, tmp_path / "cache", extra="[results]\nenabled = false\n")
    with gateway(settings, tmp_path) as alone:
        made.register(alone)
        epoch = pipeline(alone, made, step, workers=2)
        with pytest.warns(LarderWarning, match="every epoch: the cache has no room") as said:
            assert [values(epoch), values(epoch)] == [expected(made)] * 2
        assert len(said) == 1
        epoch.close()
    assert step.computed() == WHOLE + WHOLE


def test_elements_that_are_too_large_are_computed(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: elements above results.largest are reported, and the epoch is complete."""
    made = stock(origin, tmp_path / "files", "large", bytes_of(5, SIZE, "large"))
    settings = Settings(origin.endpoint, tmp_path / "cache", extra="[results]\nlargest = 100\n")
    with gateway(settings, tmp_path) as alone:
        made.register(alone)
        with pytest.warns(LarderWarning, match="larger than the gateway's setting results.largest"):
            assert values(pipeline(alone, made, Noting(tmp_path / "computed"))) == expected(made)


def test_a_read_only_key_says_that_it_stores_nothing(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: the epoch is whole, and the warning has the gateway's reason."""
    made = stock(origin, tmp_path / "files", "reader", bytes_of(5, SIZE, "reader"))
    owner = {"access_key_id": "OWNER", "secret_access_key": "gateway-secret-o", "tenant": "a"}
    reader = {"access_key_id": "GWA", "secret_access_key": "gateway-secret-a", "tenant": "a", "read_only": True}
    with gateway(Settings(origin.endpoint, tmp_path / "cache", credentials=(owner, reader)), tmp_path) as alone:
        made.register(alone, key=("OWNER", "gateway-secret-o"))
        with pytest.warns(LarderWarning, match="not stored: .*read-only"):
            assert values(pipeline(alone, made, Noting(tmp_path / "computed"))) == expected(made)


def test_an_element_that_cannot_be_decoded_is_replaced(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: a stored element that cannot be decoded is computed once, counted, and replaced."""
    step = Noting(tmp_path / "computed")
    made = pipeline(running, items, step)
    mark = made._runtime.cache_mark(fingerprints(made._stages.elements), ITEMS)
    assert mark is not None
    source = made._open().source
    source.results(made._open().info, mark.name, "somebody").put({3: [b"no element"], 4: [b""]})
    for _ in range(2):
        assert values(made) == expected(items)
        assert made.stats()["results"]["stage 2, autocache()"]["damaged"] == 2
        assert step.computed() == WHOLE
    assert values(pipeline(running, items, step)) == expected(items)
    assert step.computed() == WHOLE


@pytest.mark.parametrize(("cache", "says"), [(1, "stage 1 is no mark; the marks are at stages: 2"), (9, "no mark")])
def test_a_mark_that_there_is_not_is_refused(
    running: Running, items: Stock, tmp_path: Path, cache: int, says: str
) -> None:
    """Rule: the error names the marks that there are."""
    with pytest.raises(ValueError, match=says):
        list(pipeline(running, items, Noting(tmp_path / "computed"), cache=cache))


def test_the_mode_changes_with_the_next_epoch(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: `set_cache` takes effect when the next epoch begins, with the same workers."""
    step = Noting(tmp_path / "computed")
    made = pipeline(running, items, step, cache="auto", workers=1)
    assert values(made) == expected(items)
    assert made.stats()["results"]["stage 2, autocache()"]["stored"] == 0
    elements = iter(made)
    first = next(elements)
    made.set_cache(MARK)
    assert values(iter([first, *elements])) == expected(items)
    assert made.stats()["results"]["stage 2, autocache()"]["stored"] == 0
    assert values(made) == values(made) == expected(items)
    assert step.computed() == WHOLE + WHOLE + WHOLE
    made.set_cache(None)
    assert values(made) == expected(items)
    with pytest.raises(ValueError, match="no mark"):
        made.set_cache(1)
    made.close()


def test_arrays_of_a_read_epoch_are_those_of_a_computed_one(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: types survive, and arrays can be written to."""
    made = pipeline(running, items, Noting(tmp_path / "computed"))
    computed, read = (next(iter(made)) for _ in range(2))
    assert computed["data"].dtype == read["data"].dtype == np.int64
    assert computed["data"].flags.writeable
    assert read["data"].flags.writeable

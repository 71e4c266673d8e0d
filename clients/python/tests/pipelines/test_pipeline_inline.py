"""Pipelines in one process: stages, epochs, states, errors."""

import json
import pickle
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from pipeline_steps import (
    even,
    failing_at_7,
    noisy,
    number,
    pipeline_of,
    unstorable_at_7,
    vector,
    whole,
)

import larder
from larder.base.errors import ItemMissing, PipelineError, StageFailed, StateError
from larder.reading.frames import MISSING
from larder.testing import MemorySource


def numbers(batches):
    """The numbers in these batches."""
    return [int(value) for batch in batches for value in batch]


@pytest.mark.parametrize("items", [0, 1, 16, 103])
def test_every_element_comes_once_in_every_epoch(items):
    """Epochs follow each other, differ in their order, and are complete."""
    pipeline = pipeline_of(items).map(number).batch(8)
    first, second = numbers(pipeline), numbers(pipeline)
    assert Counter(first) == Counter(second) == whole(items)
    assert (first != second) == (items > 1)
    assert pipeline.epoch == 2


def test_elements_are_batched_by_member():
    """Dicts of arrays become a dict of stacked arrays."""
    batch = next(iter(pipeline_of().map(vector).batch(8)))
    assert batch["x"].shape == (8, 4)
    assert batch["name"] == [f"item {value}" for value in batch["x"][:, 0]]


def test_without_stages_elements_are_the_bytes_of_items():
    """A pipeline may do nothing but shuffle and batch."""
    assert Counter(map(int, pipeline_of(20))) == whole(20)


def test_a_filter_drops_elements_and_the_epoch_is_whole():
    """Elements that pass a filter come once; dropped ones are counted."""
    pipeline = pipeline_of().map(number).filter(even).batch(8)
    batches = list(pipeline)
    assert sorted(numbers(batches)) == list(range(0, 103, 2))
    assert [len(batch) for batch in batches] == [8] * 6 + [4]
    assert pipeline.stats()["dropped"] == 51


def test_stages_after_a_batch_get_batches():
    """A map after ``batch`` runs in the training process, on whole batches."""
    assert sum(pipeline_of(100).map(number).batch(10).map(np.sum)) == sum(range(100))


def test_ranks_have_disjoint_shares_and_equally_many_batches():
    """Each element comes on one rank; a rank with one element less splits its last batch."""
    shares = [list(pipeline_of(97, rank=rank, world=4).map(number).batch(8)) for rank in range(4)]
    assert Counter(value for share in shares for value in numbers(share)) == whole(97)
    assert {len(share) for share in shares} == {4}


@pytest.mark.parametrize("options", [{}, {"size": 8}, {"size": 8, "tail": "drop"}])
def test_a_pipeline_has_a_length(options):
    """That of whole epochs, on each rank, also when one is resumed; none if elements may be left out."""
    for rank in range(2):
        pipeline = pipeline_of(103 if options else 104, rank=rank, world=2).map(number)
        pipeline = pipeline.batch(**options) if options else pipeline
        came = len(list(pipeline))
        assert len(pipeline) == came
        next(iter(pipeline))
        pipeline.load_state_dict(pipeline.state_dict())
        assert len(pipeline) == came
    with pytest.raises(TypeError, match="has no length"):
        len(pipeline_of().map(number).filter(even))


def test_ranks_come_from_the_environment(monkeypatch):
    """A launcher's RANK and WORLD_SIZE count, so that ranks do not all read everything."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    shares = []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        shares.append(numbers(pipeline_of().map(number).batch(8)))
    assert Counter(shares[0] + shares[1]) == whole()
    assert abs(len(shares[0]) - len(shares[1])) == 1


def test_random_numbers_depend_on_seed_epoch_and_element():
    """The same pipeline gives the same numbers, another epoch or seed gives others, and the program's own are left alone."""
    np.random.seed(1)
    expected = np.random.rand()
    np.random.seed(1)
    pipeline = pipeline_of(seed=5).map(number).map(noisy)
    first, second = sorted(pipeline), sorted(pipeline)
    assert np.random.rand() == expected
    assert sorted(pipeline_of(seed=5).map(number).map(noisy)) == first
    drawn = {
        draws
        for epoch in (first, second, sorted(pipeline_of(seed=6).map(number).map(noisy)))
        for _, *draws in [(value, a, b) for value, a, b in epoch]
        for draws in draws
    }
    assert len(drawn) == 3 * 2 * 103


@pytest.mark.parametrize("stopped", [0, 1, 5, 12])
@pytest.mark.parametrize("filtered", [False, True])
def test_an_epoch_goes_on_from_a_saved_state(stopped, filtered):
    """After a resume, the batches are those that would have come, bit for bit, shuffled or not."""

    def made():
        pipeline = pipeline_of(seed=2).map(number)
        return (pipeline.filter(even) if filtered else pipeline).map(noisy).shuffle(20).batch(4)

    pipeline = made()
    iterator = iter(pipeline)
    list(islice(iterator, stopped))
    state = json.loads(json.dumps(pipeline.state_dict()))
    resumed = made()
    resumed.load_state_dict(state)
    assert [list(map(list, batch)) for batch in resumed] == [list(map(list, batch)) for batch in iterator]
    assert resumed.epoch == pipeline.epoch == 1


def test_a_state_saved_at_the_end_is_the_next_epoch():
    """The state after the last batch begins the next epoch."""
    pipeline = pipeline_of(32).map(number).batch(8)
    iterator = iter(pipeline)
    list(islice(iterator, 4))
    assert pipeline.state_dict()["epoch"] == 1


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "counted",
    [
        lambda pipeline: [batch for _, batch in zip(range(len(pipeline)), pipeline, strict=False)],
        lambda pipeline: list(islice(pipeline, len(pipeline))),
        lambda pipeline: [next(batches) for batches in [iter(pipeline)] for _ in range(len(pipeline))],
    ],
    ids=["zip", "islice", "next"],
)
def test_an_epoch_is_complete_with_its_last_batch(counted, workers):
    """Rule: a loop that counts batches, and never asks for the one after the last, gets the next epoch."""
    expected = pipeline_of(36).map(number).batch(8)
    pipeline = pipeline_of(36, workers=workers).map(number).batch(8)
    epochs = [numbers(counted(pipeline)) for _ in range(3)]
    assert epochs == [numbers(expected) for _ in range(3)]
    assert pipeline.epoch == 3
    pipeline.close()
    assert numbers(pipeline) == numbers(expected)
    pipeline.close()


def test_after_a_break_the_epoch_is_repeated():
    """Like in other loaders, only a complete iteration advances the epoch."""
    pipeline = pipeline_of().map(number).batch(8)
    for _ in pipeline:
        break
    assert Counter(numbers(pipeline)) == whole()
    assert pipeline.epoch == 1


@pytest.mark.parametrize(
    ("interrupt", "why"),
    [
        (iter, "another iteration over this pipeline has begun"),
        (lambda pipeline: pipeline.load_state_dict(pipeline.state_dict()), "a state was loaded"),
        (lambda pipeline: pipeline.set_epoch(3), "another epoch was set"),
        (lambda pipeline: pipeline.close(), "the pipeline was closed"),
    ],
)
def test_a_replaced_iteration_raises_state_error(interrupt, why):
    """A loop never gets a short epoch silently; one that has had its whole epoch ends as always."""
    pipeline = pipeline_of(20).map(number).batch(8)
    iterator = iter(pipeline)
    next(iterator)
    interrupt(pipeline)
    with pytest.raises(StateError, match=why):
        next(iterator)
    pipeline.set_epoch(0)
    complete = iter(pipeline)
    list(islice(complete, 3))
    interrupt(pipeline)
    assert next(complete, None) is None


def test_set_epoch_gives_that_epoch():
    """``set_epoch`` selects an epoch, which equals the one that iteration reaches."""
    pipeline, other = pipeline_of().map(number).batch(8), pipeline_of().map(number).batch(8)
    numbers(pipeline)
    other.set_epoch(1)
    assert numbers(other) == numbers(pipeline)


@pytest.mark.parametrize(
    "derived", [lambda pipeline: pipeline.map(noisy), lambda pipeline: pipeline.with_ranks(0, 1)], ids=["map", "ranks"]
)
def test_a_derived_pipeline_begins_where_its_base_would(derived):
    """Rule: an epoch that was set, and a state that was loaded, hold for pipelines that are made of this one."""
    base = pipeline_of().map(number)
    base.set_epoch(3)
    assert derived(base).epoch == 3
    elements = iter(base)
    came = list(islice(elements, 10))
    assert len(list(derived(base))) == 103  # as after a break
    base.load_state_dict(base.state_dict())
    rest = len(list(derived(base)))
    assert (len(came) + rest, derived(base).epoch) == (103, 3)


def test_a_state_of_another_dataset_is_refused():
    """A state loads into its own dataset only."""
    state = pipeline_of(20).map(number).batch(8).state_dict()
    with pytest.raises(StateError, match="this is a state of dataset"):
        pipeline_of(21).map(number).batch(8).load_state_dict(state)


def test_a_pipeline_can_be_extended_and_pickled():
    """Two pipelines may share their first stages; a pickled one continues from its position."""
    begun = pipeline_of().map(number)
    small, large = begun.batch(2), begun.batch(50)
    assert (len(next(iter(small))), len(next(iter(large)))) == (2, 50)
    iterator = iter(small)
    came = list(islice(iterator, 7))
    rest = list(pickle.loads(pickle.dumps(small)))
    assert Counter(numbers(came + rest)) == whole()


def test_a_function_that_raises_is_named_with_element_and_stage():
    """The error has index, key, stage and the function's own traceback; earlier elements are in the state."""
    pipeline = pipeline_of().map(failing_at_7).map(noisy).batch(4)
    came = []
    with pytest.raises(
        StageFailed, match=r"item 7 \(memory/'item-7'\) failed in stage 1, map\(failing_at_7\): Zero"
    ) as raised:
        came.extend(pipeline)
    assert (raised.value.index, raised.value.stage) == (7, "stage 1, map(failing_at_7)")
    assert 'raise ZeroDivisionError("seven")' in str(raised.value.__cause__)
    assert pipeline.state_dict()["epoch"] == 0
    assert pipeline.stats()["elements"] == 4 * len(came)


def test_a_failed_element_can_be_skipped():
    """With ``on_error="skip"`` the epoch is complete without it, and the count says so."""
    pipeline = pipeline_of(on_error="skip").map(failing_at_7).batch(4)
    assert Counter(numbers(pipeline)) == whole() - Counter([7])
    assert pipeline.stats()["skipped"] == 1


def test_a_value_that_cannot_be_stored_is_named():
    """The error says which part of the element is not one of the types of elements."""
    message = r"item 7 .* failed in stage 1, map\(unstorable_at_7\): the element\['lock'\]\[0\] is a _thread.lock"
    with pytest.raises(StageFailed, match=message):
        list(pipeline_of().map(unstorable_at_7))


@pytest.mark.parametrize("on_missing", ["raise", "skip"])
def test_an_item_that_is_not_there(on_missing):
    """A missing item is an error, like in other loaders, or is skipped."""
    pipeline = pipeline_of(source=MemorySource(20, failures={3: MISSING}), on_missing=on_missing).map(number)
    if on_missing == "skip":
        assert Counter(pipeline) == whole(20) - Counter([3])
    else:
        with pytest.raises(ItemMissing, match="item 3"):
            list(pipeline)


def test_a_failing_batch_stage_names_its_items():
    """The training process's own stages have errors of the same kind."""

    def fail(batch):
        raise ValueError("no")

    with pytest.raises(
        PipelineError, match=r"the batch of items \d+, .* failed in stage 3, map\(fail\): ValueError: no"
    ):
        list(pipeline_of().map(number).batch(4).map(fail))


def test_items_have_names_with_keys():
    """With ``keys=True`` the first function sees bucket, key and offset."""
    pipeline = pipeline_of(20, keys=True).map(lambda item: (item.index, item.key, item.offset))
    assert sorted(pipeline) == [(index, f"item-{index}", None) for index in range(20)]

    class Parts(MemorySource):
        def locations(self, info, start=0, count=None):
            return (replace(place, offset=10 * place.index) for place in super().locations(info, start, count))

    parts = pipeline_of(source=Parts(20), keys=True).map(lambda item: item.offset)
    assert sorted(parts) == [10 * index for index in range(20)]


def test_stages_are_measured():
    """Time per element grows along the pipeline, since it includes all earlier stages; bytes are known for marks and the end."""
    pipeline = pipeline_of(64).map(vector).autocache().map(dict).batch(8)
    list(pipeline)
    stages = pipeline.stats()["stages"]
    assert list(stages) == ["reading", "stage 1, map(vector)", "stage 2, autocache()", "stage 3, map(dict)"]
    assert {stage["elements"] for stage in stages.values()} == {64}
    seconds = [stage["seconds"] for stage in stages.values()]
    assert seconds == sorted(seconds)
    assert stages["stage 2, autocache()"]["bytes"] == stages["stage 3, map(dict)"]["bytes"] > 32


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda p: p.autocache(), "nothing to store yet"),
        (lambda p: p.batch(2).filter(even), "put it before batch"),
        (lambda p: p.map(number).shuffle(4).autocache(), r"put it before shuffle\(\)"),
        (lambda p: p.shuffle(2).shuffle(2), r"one shuffle\(\)"),
        (lambda p: p.batch(2).batch(2), "put it before batch"),
        (lambda p: p.batch(0), "size must be a whole number of at least 1"),
        (lambda p: p.batch(2, tail="full"), "tail must be one of 'short', 'drop', 'pad'"),
    ],
)
def test_stages_in_an_order_that_makes_no_sense_are_refused(wrong, message):
    """A pipeline that cannot run is refused where it is built."""
    with pytest.raises(ValueError, match=message):
        wrong(pipeline_of())


def test_without_a_gateway_the_iteration_says_so():
    """Building a pipeline makes no request; iterating without a gateway raises the same error as other loaders."""
    access = larder.Access(credentials=larder.Credentials("key", "secret"), retry=larder.Retry(attempts=1))
    pipeline = larder.pipeline("train", endpoint="http://127.0.0.1:9", access=access).map(number).batch(8)
    with pytest.raises(larder.GatewayUnavailable, match=r"127\.0\.0\.1:9 did not answer"):
        iter(pipeline)


def test_options_are_checked(monkeypatch, tmp_path):
    """An unknown option, a value out of range, and a missing endpoint are errors at once."""
    for name in ("LARDER_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(TypeError, match="unknown option worker"):
        larder.pipeline("train", worker=1)
    with pytest.raises(ValueError, match="timeout must be at least 0"):
        pipeline_of(timeout=-1)
    with pytest.raises(ValueError, match='on_error must be "raise" or "skip"'):
        pipeline_of(on_error="ignore")
    with pytest.raises(ValueError, match="no endpoint: give one, or set LARDER_ENDPOINT"):
        larder.pipeline("train")
    with pytest.raises(TypeError, match="a stage needs a function, not 3"):
        pipeline_of().map(3)


@pytest.mark.parametrize("epoch", ["3", 2.5, -1, True])
def test_an_epoch_that_is_none_is_refused(epoch):
    """Rule: the iteration under way goes on."""
    pipeline = pipeline_of().map(number)
    elements = iter(pipeline)
    came = [next(elements)]
    with pytest.raises(ValueError, match=f"epoch must be a whole number of at least 0, not {epoch!r}"):
        pipeline.set_epoch(epoch)
    assert Counter([*came, *elements]) == whole()


@pytest.mark.parametrize("workers", ["3", 2.5, 0, True])
def test_a_number_of_workers_that_is_none_is_refused(workers):
    """Rule: ``scale`` checks before it changes anything."""
    with pytest.raises(ValueError, match=f"workers must be a whole number of at least 1, not {workers!r}"):
        pipeline_of(workers=1).map(number).scale(workers)

"""Marks with several versions: each epoch uses one, the same whether it was computed or read."""

import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_steps import even, failing_at_7, noisy, number, pipeline_of
from test_pipeline_read_through import ResultsInMemory

from larder.pipelines.fingerprint import Fingerprint, fingerprints, result_name
from larder.pipelines.metering import ELEMENTS, ProfiledStages, ProfileMeter
from larder.pipelines.options import RunOptions
from larder.pipelines.running import PipelineRuntime
from larder.pipelines.stages import StageCounts, version_of

ITEMS = 40


def drawn(versions=3, *, source=None, seed=1, **options):
    """A pipeline with random numbers before and after its mark, stage 3, whose elements are item, early and late numbers."""
    options = {"workers": 0, "seed": seed, **({} if source is None else {"source": source}), **options}
    begun = pipeline_of(ITEMS, **options).map(number).map(noisy).autocache(versions=versions)
    return begun.map(late)


def late(element):
    """The element's item, its early random number, and a late one."""
    return element[0], element[1], float(np.random.rand())


def epochs_of(pipeline, count):
    """The elements of each epoch, by item."""
    return [{item: (early, after) for item, early, after in pipeline} for _ in range(count)]


def early_of(epochs):
    """The early random number of each item, by epoch."""
    return [{item: early for item, (early, _) in epoch.items()} for epoch in epochs]


def names_of(pipeline, seed=1):
    """The names of the results of each mark."""
    marks = fingerprints(pipeline._stages.elements)
    return {stage: result_name(fingerprint, keys=False, seed=seed) for stage, fingerprint in marks.items()}


@given(st.integers(), st.integers(0, 1000), st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 4))
def test_successive_epochs_use_each_version_once(seed, epoch, item, versions, times):
    """Rule: from any epoch on, so many epochs use all versions; a mark with a divisor of versions follows."""
    used = [version_of(seed, epoch + turn, item, versions) for turn in range(versions)]
    assert sorted(used) == list(range(versions))
    assert version_of(seed, epoch + versions, item, versions) == used[0]
    assert version_of(seed, epoch, item, times * versions) % versions == used[0]


def test_items_begin_with_any_version():
    """Rule: in one epoch, all versions are used about equally often."""
    used = Counter(version_of(1, 0, item, 4) for item in range(4000))
    assert all(800 < count < 1200 for count in used.values())
    assert len(used) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_elements_come_again_after_all_versions(workers):
    """Rule: nothing is stored, and each epoch has other early numbers until all versions were used; late ones never repeat."""
    pipeline = drawn(3, workers=workers)
    epochs = epochs_of(pipeline, 6)
    pipeline.close()
    early = early_of(epochs)
    assert early[:3] == early[3:]
    assert all(len({epoch[item] for epoch in early}) == 3 for item in range(ITEMS))
    assert all(len({epoch[item][1] for epoch in epochs}) == 6 for item in range(ITEMS))


def test_stored_elements_are_those_that_are_computed():
    """Rule: caching changes no element; each version is computed once, in the first epochs, and read afterwards."""
    expected = epochs_of(drawn(3), 6)
    source = ResultsInMemory(ITEMS)
    stored = drawn(3, source=source, cache=3)
    assert epochs_of(stored, 6) == expected
    stored.close()
    results = stored.stats()["results"]["stage 3, autocache(versions=3)"]
    assert results == {"read": 3 * ITEMS, "computed": 3 * ITEMS, "stored": 3 * ITEMS, "refused": 0, "damaged": 0}
    assert sorted(source.shared[0]) == list(range(3 * ITEMS))
    # Another run reads the same ones.
    again = drawn(3, source=source, cache=3)
    assert epochs_of(again, 2) == expected[:2]
    assert again.stats()["results"]["stage 3, autocache(versions=3)"]["read"] == 2 * ITEMS


def test_a_mode_that_changes_between_epochs_changes_no_element():
    """Rule: epochs that store, read and compute in any order have the elements of one that only computes."""
    expected = epochs_of(drawn(2), 6)
    pipeline, came = drawn(2, source=ResultsInMemory(ITEMS)), []
    for mark in (None, 3, 3, None, 3, 3):
        pipeline.set_cache(mark)
        came += epochs_of(pipeline, 1)
    assert came == expected


def test_a_resumed_epoch_has_the_same_versions():
    """Rule: the state has the epoch, and that decides versions, whether results are stored or not."""
    (expected,) = epochs_of(drawn(4), 1)
    source = ResultsInMemory(ITEMS)
    first = drawn(4, source=source, cache=3)
    elements = iter(first)
    came = [next(elements) for _ in range(11)]
    resumed = drawn(4, source=source)
    resumed.load_state_dict(first.state_dict())
    came += list(resumed)
    assert {item: (early, after) for item, early, after in came} == expected


def test_ranks_share_versions():
    """Rule: the ranks of a job use the version that one rank would use."""
    (expected,) = epochs_of(drawn(2), 1)
    source = ResultsInMemory(ITEMS)
    came = {}
    for rank in range(2):
        (part,) = epochs_of(drawn(2, source=source, cache=3).with_ranks(rank, 2), 1)
        came |= part
    assert came == expected


def test_later_marks_have_versions_of_earlier_ones():
    """Rule: an element is the same whichever of several marks is stored."""

    def nested(**options):
        options = {"workers": 0, "seed": 1, **options}
        begun = pipeline_of(ITEMS, **options).map(number).map(noisy).autocache(versions=2)
        return begun.map(late).autocache(versions=4)

    expected = epochs_of(nested(), 8)
    for mark in (3, 5):
        assert epochs_of(nested(source=ResultsInMemory(ITEMS), cache=mark), 8) == expected
    early = early_of(expected)
    assert early[:2] == early[2:4]
    assert expected[:4] == expected[4:]
    assert all(len({epoch[item] for epoch in expected}) == 4 for item in range(ITEMS))


def test_marks_between_change_neither_names_nor_elements():
    """Rule: a mark of one version on the way only makes the decoded items storable: both pipelines share what is stored."""
    plain = drawn(2)
    begun = pipeline_of(ITEMS, workers=0, seed=1).map(number).autocache().map(noisy)
    marked = begun.autocache(versions=2).map(late)
    assert early_of(epochs_of(plain, 2)) == early_of(epochs_of(marked, 2))
    assert names_of(plain)[3] == names_of(marked)[4]


def test_seed_and_number_of_versions_are_in_the_name():
    """Rule: another seed draws other versions, so it has other results; those of one version are shared by all seeds."""
    assert len({names_of(drawn(2))[3], names_of(drawn(2), seed=2)[3], names_of(drawn(4))[3]}) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert names_of(drawn(1)) == names_of(drawn(1), seed=2)


def test_a_mark_after_versions_has_another_name():
    """Rule: its elements depend on how many versions there were before."""

    def named(before):
        return names_of(pipeline_of().map(number).map(noisy).autocache(before).map(late).autocache(4))[5]

    assert named(2) != named(4)


def test_random_functions_before_versions_are_no_mistake():
    """Rule: only a mark of one version warns that it would freeze random numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn(2)
    with pytest.warns(UserWarning, match=r"stage 3, autocache\(\) would freeze random numbers"):
        drawn(1)


@pytest.mark.parametrize("versions", [0, -1, 1.5, "2", True, 1001])
def test_a_wrong_number_of_versions_is_refused(versions):
    """Rule: the error has the range."""
    with pytest.raises(ValueError, match="versions must be a whole number from 1 to 1000, not"):
        pipeline_of().map(number).autocache(versions=versions)


@pytest.mark.parametrize("versions", [1, 2, 6])
def test_later_marks_need_a_multiple(versions):
    """Rule: elements at a later mark are made of those at an earlier one, so they must not be fewer."""
    with pytest.raises(
        ValueError, match=r"versions must be a multiple of 4, as stage 2, autocache\(versions=4\) comes before"
    ):
        pipeline_of().map(number).autocache(versions=4).map(noisy).autocache(versions=versions)


def test_more_results_than_numbers_are_refused():
    """Rule: a result has a number of four bytes."""
    runtime, marks = PipelineRuntime(RunOptions(cache=2)), {2: Fingerprint("ab" * 32, versions=1000)}
    assert runtime.cache_mark(marks, 4_294_967).stage == 2
    with pytest.raises(ValueError, match="the mark at stage 2 would have 4294968000 results; at most 4294967296"):
        runtime.cache_mark(marks, 4_294_968)


def test_failed_and_dropped_elements_have_versions_too():
    """Rule: on_error="skip" and filters before the mark work as with one version."""
    source = ResultsInMemory(ITEMS)
    begun = pipeline_of(ITEMS, workers=0, source=source, on_error="skip", cache=3)
    pipeline = begun.map(failing_at_7).filter(even).autocache(versions=2)
    for _ in range(4):
        assert sorted(pipeline) == list(range(0, ITEMS, 2))
    assert (pipeline.stats()["skipped"], pipeline.stats()["dropped"]) == (4, 4 * (ITEMS // 2 - 1))
    assert len(source.shared[0]) == 2 * (ITEMS - 1)


def test_a_damaged_version_is_replaced_alone():
    """Rule: each version of an element that cannot be decoded is computed again and replaced; the others stay."""
    source = ResultsInMemory(ITEMS)
    expected = epochs_of(drawn(2, source=source, cache=3), 2)
    for result in (7, ITEMS + 7):
        source.shared[0][result] = b"no element"
    again = drawn(2, source=source, cache=3)
    assert epochs_of(again, 2) == expected
    assert again.stats()["results"]["stage 3, autocache(versions=2)"]["damaged"] == 2
    assert epochs_of(drawn(2, source=source, cache=3), 2) == expected
    assert [store.replaced for store in source.stores] == [0, 2, 0]


def test_profiles_have_versions_where_there_are_several():
    """Rule: the fleet needs them to know the space; an earlier gateway knows no such field, and needs none for one version."""
    meter = ProfileMeter(ProfiledStages(4, {2: "ab" * 32, 3: "cd" * 32}, {2: 1, 3: 8}))
    counts = {stage: StageCounts(ELEMENTS, 1.0, 100, ELEMENTS) for stage in range(5)}
    meter.profile({}, 1)
    marks = meter.profile(counts, 1)["marks"]
    assert [mark.get("versions") for mark in marks] == [None, 8]

"""Ranks of a loader are in step after every batch: in what they deliver, and in what their states say is left."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from larder import Loader, Mix, Retry, Shard, UnevenRanks, merge_states
from larder.base.options import whole_number
from larder.base.ranks import Ranks, given_ranks
from larder.reading.frames import MISSING
from larder.reading.mixing import MixedSource
from larder.testing import MemorySource
from larder.training.heartbeat import Registration

TAILS = st.sampled_from(["short", "drop", "pad"])


def loader_of(items, lost, batch_size, tail, substitute, mixed, ahead):
    """A loader of items in memory, some of which are lost; of a single dataset or of a mixture."""
    failures = dict.fromkeys(lost, MISSING)
    options = {"batch_size": batch_size, "tail": tail, "substitute": substitute, "ahead": ahead, "on_missing": "skip"}
    if not mixed:
        return Loader("memory:", "a", source=MemorySource(items, failures=failures), **options)
    mix = Mix({"a": 0.75, "b": 0.25}, items=items)
    source = MixedSource(mix, [MemorySource(items, failures=failures, name="a"), MemorySource(2, name="b")])
    return Loader("memory:", mix, source=source, **options)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(4, 45),
    st.integers(2, 5),
    st.sampled_from([1, 2, 3, 8]),
    TAILS,
    st.sampled_from([1, 10]),
    st.booleans(),
    st.sampled_from([0.0, 0.2, 0.8]),
    st.integers(0, 2**32),
    st.tuples(st.integers(0, 5), st.integers(1, 6)),
)
def test_ranks_are_in_step_after_every_batch(items, world, batch_size, tail, substitute, mixed, share, seed, resume):
    """Equally many batches on every rank, also after a merge for other ranks; the only refusal is the documented one."""
    lost = np.flatnonzero(np.random.default_rng(seed).random(items) < share).tolist()[: items - 1]
    make = partial(loader_of, items, lost, batch_size, tail, substitute, mixed, seed % 2)
    try:
        runs = [make().epoch(0, shard=Shard(rank, world, 0, 1)) for rank in range(world)]
    except UnevenRanks:
        largest = (items + world - 1) // world
        assert tail == "short"
        assert items // world < (largest + batch_size - 1) // batch_size
        return
    stop, new_world = resume
    came, loader = Counter(), make()
    for _ in range(stop):
        batches = [next(run, None) for run in runs]
        assert len({batch is None for batch in batches}) == 1
        if batches[0] is None:
            break
        assert all(len(batch) == batch_size or (tail == "short" and len(batch)) for batch in batches)
        states = [run.state_dict() for run in runs]
        assert len({(state["epoch"], loader.batches_after(state)) for state in states}) == 1
        came.update(number for run in runs for number in set(run.numbers.tolist()))
    merged = merge_states([run.state_dict() for run in runs])
    progress = [make().restored(merged, Shard(rank, new_world, 0, 1)) for rank in range(new_world)]
    assert len({each.epoch for each in progress}) == 1
    if progress[0].epoch == 0 and stop:
        shards = [Shard(rank, new_world, 0, 1) for rank in range(new_world)]
        rests = [make().epoch(0, shard=shard, state=merged) for shard in shards]
        counts = [sum(1 for _ in rest) for rest in rests]
        assert len(set(counts)) == 1


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
def test_numbers_of_numpy_become_numbers_of_python(kind):
    """Wherever an argument is a whole number, numpy's is one, and what is kept of it can be written as JSON."""
    options = {"batch_size": kind(8), "seed": kind(3), "substitute": kind(2), "ahead": kind(1)}
    settings_of = Loader("memory:", "x", source=MemorySource(1), **options).settings
    job = Registration("job", str, kind(8), gpus=kind(1), ranks=kind(2), rank=kind(1))
    kept = [settings_of.batch_size, settings_of.seed, settings_of.substitute, settings_of.ahead]
    kept += [job.batch_size, job.gpus, job.ranks, job.rank, Retry(attempts=kind(2)).attempts]
    kept += [Mix({"a": 1.0, "b": 2.0}, items=kind(10)).items, *(given_ranks(kind(1), kind(2)) or Ranks(0, 0))]
    assert kept == [8, 3, 2, 1, 8, 1, 2, 1, 2, 10, 1, 2]
    assert {type(number) for number in kept} == {int}


@pytest.mark.parametrize("value", [True, np.True_, 3.0, np.float64(3), "3", None, np.array([1, 2]), 0, -1])
def test_other_values_are_no_whole_numbers(value):
    """Truth values, fractions, texts and arrays are refused with the name of the argument and what it must be."""
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1, not "):
        whole_number("batch_size", value, 1)


@pytest.mark.parametrize("shard", [(0, 2), (2, 2, 0, 1), (0, 1, 1, 1), (0, 0, 0, 1), 3])
def test_a_shard_that_there_is_not(shard):
    """The message names the part, or what a shard is."""
    with pytest.raises(ValueError, match=r"(rank|world|worker|shard) must be"):
        Loader("memory:", "a", batch_size=2, source=MemorySource(8)).epoch(0, shard=shard)

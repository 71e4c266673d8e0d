"""A training run on a mixture: a job for each dataset, which counts exactly what the run reads of it."""

from collections import Counter

import numpy as np
import pytest
from fake_jobs import KEY, PATIENT, job_at
from hypothesis import given
from hypothesis import strategies as st

import larder
from larder.base.dataset import Directives
from larder.reading.mixing import Mix, MixedSource
from larder.testing import MemoryReader, MemorySource
from larder.training.timing import divided

SIZES = {"a": 60, "b": 20}


class NotedReader(MemoryReader):
    """Notes the job and the epoch of each request, and makes offers, as a gateway does."""

    def __init__(self, source, stats, noted):
        super().__init__(source, stats)
        self._noted = noted

    def fetch(self, indices, **named):
        """Note and read."""
        self._noted.append((self._source.name, named.get("job"), named.get("epoch"), None))
        fetched = super().fetch(indices, **named)
        fetched.directives = Directives(self._source.caching, sharing=1)
        return fetched

    def fetch_shared(self, indices, *, take, offers, epoch, job):
        """Note and read those that were offered first."""
        self._noted.append((self._source.name, job, epoch, indices[take : take + offers].tolist()))
        chosen = np.roll(indices, -take)[:take] if offers >= take else indices[:take]
        fetched = MemoryReader.fetch(self, chosen)
        fetched.directives = Directives(self._source.caching, sharing=1)
        return fetched

    def offers(self, most, *, epoch, job):
        """The last items of the dataset."""
        self._noted.append((self._source.name, job, epoch, "asked"))
        return np.arange(self._source.items - 4, self._source.items, dtype=np.uint32)


class NotedSource(MemorySource):
    """A dataset whose requests are noted."""

    def __init__(self, name, noted, caching="part"):
        super().__init__(SIZES[name], 0.5, caching=caching, name=name)
        self.noted = noted

    def reader(self, info, stats):
        """Notes what it is asked."""
        return NotedReader(self, stats, self.noted)


def loader_of(mix, job, noted=None, **options):
    """A loader of the mixture in memory."""
    sources = [NotedSource(name, [] if noted is None else noted) for name in mix.names]
    return larder.Loader("memory:", mix, batch_size=16, source=MixedSource(mix, sources), job=job, **options)


def came(batches):
    """The items by dataset."""
    return Counter(
        (part, index)
        for batch in batches
        for part, index in zip(batch.datasets.tolist(), batch.indices.tolist(), strict=True)
    )


WHOLE = Counter((part, index) for part, size in enumerate(SIZES.values()) for index in range(size))


def test_a_run_is_a_job_of_each_dataset(jobs):
    """Rule: each dataset has a registration, named by the run and the dataset; leaving removes all."""
    mix = Mix(["a", "b"])
    with larder.Job(jobs.endpoint, "run", mix, batch_size=16, gpus=4, credentials=KEY, retry=PATIENT) as job:
        assert job.join() == "full"
        assert {each["job"]: each["dataset"] for each in jobs.registrations} == {"run.a": "a", "run.b": "b"}
        assert {each["gpus"] for each in jobs.registrations} == {4}
        assert job.stats()["registered"] == 2
    assert sorted(jobs.removed) == ["run.a", "run.b"]


def test_names_of_files_are_their_stems():
    """Rule: a job's name has no slash, and equal stems are told apart."""
    assert Mix(["s3://data/sets/a.parquet", "b c"]).jobs("run") == ("run.a", "run.b-c")
    assert Mix(["x/a.parquet", "y/a.parquet"]).jobs("run") == ("run.0.a", "run.1.a")


def test_batches_name_the_job_of_their_dataset(jobs):
    """Rule: requests of a dataset have its job's name, and its pass as their epoch: then its items are needed again."""
    mix, noted = Mix(["a", "b"]), []
    loader = loader_of(mix, "run", noted, ahead=0)
    assert came(loader) + came(loader) == WHOLE + WHOLE
    assert {(name, job, epoch) for name, job, epoch, _ in noted} == {
        (name, f"run.{name}", epoch) for name in SIZES for epoch in (0, 1)
    }


def test_the_epoch_of_a_dataset_with_a_weight_is_its_pass():
    """Rule: a small dataset of which an epoch of the mixture takes two passes is in two epochs of its own, whatever the order of
    their items within a segment."""
    mix, noted = Mix({"a": 40, "b": 40}), []
    list(loader_of(mix, "run", noted, ahead=0, substitute=1, reuse=False).epoch(1))
    epochs = {name: [epoch for of, _, epoch, _ in noted if of == name] for name in SIZES}
    assert set(epochs["b"]) <= {2, 3}
    assert set(epochs["a"]) <= {0, 1}
    list(loader_of(mix, "run", noted := [], ahead=0, substitute=1, reuse=False).epoch(5))
    assert {epoch for of, _, epoch, _ in noted if of == "b"} <= {10, 11}


def test_what_other_jobs_have_read_is_taken_early():
    """Rule: each dataset's offers are asked for and passed on to it, and every item still comes once."""
    mix, noted = Mix(["a", "b"]), []
    assert came(loader_of(mix, "run", noted, ahead=0)) == WHOLE
    asked = {name for name, _, _, offered in noted if offered == "asked"}
    passed = {name: {*offered} for name, _, _, offered in noted if isinstance(offered, list) and offered}
    assert asked == set(SIZES)
    assert passed
    assert all(offered <= {*range(SIZES[name] - 4, SIZES[name])} for name, offered in passed.items())


def test_each_dataset_is_told_of_its_own_part(jobs):
    """Rule: items, hits and the last epoch of a dataset's heartbeat are those of its items; steps are those of the run."""
    mix = Mix(["a", "b"])
    with larder.Job(jobs.endpoint, "run", mix, batch_size=16, credentials=KEY, retry=PATIENT) as job:
        loader = loader_of(mix, job)
        job.join()
        for _ in range(2):
            list(job.watch(loader))
        jobs.wait(lambda: sum("finished" in beat and beat["finished"]["epoch"] == 1 for beat in jobs.beats) >= 2)
        known = job.stats()["datasets"]
    finished = {beat["finished"]["items"]: beat["finished"] for beat in jobs.beats if "finished" in beat}
    assert set(finished) == {60, 20}
    assert {each["least"] for each in finished.values()} == {0.5}
    totals = {name: known[name]["phases"]["steady"] for name in SIZES}
    assert totals["a"]["steps"] == totals["b"]["steps"] > 0
    assert totals["a"]["items"] > totals["b"]["items"] > 0


@pytest.mark.parametrize(
    ("made", "read"), [(None, ["a", "b"]), (["b", "a"], ["a", "b"]), (["a", "b"], None)], ids=["one", "order", "other"]
)
def test_a_job_of_other_datasets_is_refused(jobs, made, read):
    """Rule: a loader and its job have the same dataset or mixture; the error comes where they are put together."""
    job = job_at(jobs) if made is None else larder.Job(jobs.endpoint, "run", Mix(made), batch_size=16, credentials=KEY)
    with pytest.raises(ValueError, match="give both the same dataset or Mix"):
        larder.Loader("memory:", "a" if read is None else Mix(read), batch_size=16, source=MemorySource(3), job=job)


def test_a_mixture_must_be_watched(jobs):
    """Rule: what cannot tell the datasets apart is refused, with the way that can."""
    job = larder.Job(jobs.endpoint, "run", Mix(["a", "b"]), batch_size=16, credentials=KEY)
    with pytest.raises(ValueError, match="use watch"):
        job.step()
    with pytest.raises(ValueError, match="use watch"), job.timing():
        pass


@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1),
    st.floats(0, 10),
    st.floats(0, 10),
)
def test_waiting_is_divided_by_misses(read, computed, waited):
    """Rule: the datasets' waiting adds up to the run's, one without misses waits for nothing while another has some, and all
    have the time of computing."""
    counts = {name: (hits + misses, hits) for name, (hits, misses) in read.items()}
    times = divided(computed + waited, waited, counts)
    if any(items for items, _ in counts.values()):
        assert sum(part for _, part in times.values()) == pytest.approx(waited)
    some = any(items > hits for items, hits in counts.values())
    for name, (seconds, part) in times.items():
        assert seconds - part == pytest.approx(computed, abs=1e-9)
        items, hits = counts[name]
        if some and items == hits:
            assert part == 0

"""Hosts of workers: values of ``workers=``, and Ray without the package. The gateway's tests use a real cluster."""

import sys

import numpy as np
import pytest
from pipeline_steps import number, pipeline_of

from larder.base.errors import PipelineError
from larder.pipelines.elements import Encoded, decode
from larder.pipelines.hosts import WorkerChoice, usable_cores
from larder.pipelines.ray_actors import PartBytes
from larder.pipelines.stages import ElementFailure
from larder.pipelines.worker import SentPart


@pytest.mark.parametrize(
    ("workers", "choice"),
    [
        (None, WorkerChoice()),
        (0, WorkerChoice(0)),
        (3, WorkerChoice(3)),
        ("ray", WorkerChoice(None, on_ray=True)),
        ("ray:12", WorkerChoice(12, on_ray=True)),
        ("local+ray", WorkerChoice(None, on_ray=True, local_first=True)),
        ("local+ray:12", WorkerChoice(12, on_ray=True, local_first=True)),
    ],
)
def test_workers_are_a_number_or_on_ray(workers, choice):
    """A number of processes, or actors with or without their number, or first the ones and then the others."""
    assert WorkerChoice.of(workers, None) == choice


@pytest.mark.parametrize(
    "workers", ["", "Ray", "ray:", "ray:0", "ray: 3", "ray:x", "local", "ray+local", "local+ray:0", "4", -1, 2.5, True]
)
def test_other_workers_are_refused(workers):
    """Other values of ``workers=`` are refused before anything is started."""
    with pytest.raises(ValueError, match=r"workers must be .*, not "):
        pipeline_of(workers=workers)


def test_options_of_ray_need_ray():
    """Ray's options without Ray are refused, because they would be ignored."""
    with pytest.raises(ValueError, match=r'ray_options= needs workers="ray"'):
        pipeline_of(workers=2, ray_options={"num_cpus": 2})
    choice = WorkerChoice.of("ray", {"num_cpus": 2})
    assert choice.ray_options == {"num_cpus": 2}


def test_without_a_number_there_is_a_worker_for_each_core():
    """The default number of workers is that of the cores that the training process may use."""
    assert WorkerChoice().default(world=4) == usable_cores()


def test_without_ray_the_error_names_the_extra(monkeypatch):
    """Ray is imported only when requested; without it the error names the extra."""
    monkeypatch.setitem(sys.modules, "ray", None)
    pipeline = pipeline_of(workers="ray").map(number)
    with pytest.raises(PipelineError, match=r"needs Ray: pip install 'larder\[ray\]'"):
        next(iter(pipeline))


def test_a_part_of_bytes_is_read_without_a_copy():
    """Elements lie where arrays may begin; failures keep their places."""
    memory, first, second = PartBytes(), np.arange(10.0), {"name": "x", "n": np.ones(3, np.uint8)}
    failure = ElementFailure("stage 1, map(f)", "no")
    values = [memory.append(Encoded(first)), failure, memory.append(Encoded(second))]
    data = memory.array()
    part = SentPart(4, 2, values, {}, memory.size).received(memoryview(data))
    assert (part.split, part.first, part.values[1]) == (4, 2, failure)
    arrays = [decode(part.values[0], copy=False), decode(part.values[2], copy=False)["n"]]
    assert [array.tolist() for array in arrays] == [first.tolist(), [1, 1, 1]]
    assert all(np.shares_memory(array, data) for array in arrays)
    assert arrays[0].ctypes.data % 64 == data.ctypes.data % 64

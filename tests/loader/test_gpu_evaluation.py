"""The evaluation that feeds a GPU: its loop on the CPU, and its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.evaluation.gpu import NAME, summary, write_digests_of, write_picture
from lab.evaluation.gpu_job import Answer, Order, Setting, Trainer, run
from larder import Client, Credentials
from rig.gateways import Settings, gateway
from rig.origin import ALICE, FakeOrigin, OriginThread

KEY = ("GWA", "gateway-secret-a")
BATCH, ITEMS = 4, 18


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """A small network, and pictures for it."""
    found = Setting("small", BATCH, 32, str(tmp_path_factory.mktemp("pictures")), ITEMS)
    for number in range(ITEMS):
        write_picture(96, number, str(Path(found.files) / found.key(number)))
    return found


@pytest.fixture(scope="module")
def store(setting: Setting) -> Iterator[FakeOrigin]:
    """A bucket with the pictures."""
    with OriginThread() as running:
        for number in range(ITEMS):
            key = setting.key(number)
            running.put("data", f"{NAME}/{key}", (Path(setting.files) / key).read_bytes())
        yield running


@pytest.fixture(scope="module")
def endpoint(setting: Setting, store: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that knows the dataset."""
    home = tmp_path_factory.mktemp("gateway")
    digests = home / "photos.parquet"
    write_digests_of(setting, digests)
    with gateway(Settings(store.endpoint, home / "cache"), home) as running:
        address = f"http://127.0.0.1:{running.port}"
        Client(address, credentials=Credentials(*KEY)).register(NAME, digests)
        yield address


@pytest.mark.parametrize("source", ["synthetic", "files", "s3", "larder", "larder with a job"])
def test_every_source_has_whole_epochs(setting: Setting, store: FakeOrigin, endpoint: str, source: str):
    """Rule: whatever feeds the loop, an epoch has each full mini-batch once, and each step is timed."""
    kind, _, job = source.partition(" with a ")
    direct = kind == "s3"
    order = Order(
        kind,
        workers=1,
        seed=1,
        epochs=2,
        limit=60.0,
        endpoint=store.endpoint if direct else endpoint,
        keys=(ALICE.access_key_id, ALICE.secret_access_key) if direct else KEY,
        bucket="data" if direct else NAME,
        prefix=f"{NAME}/",
        job=job,
    )
    answer = run(Trainer(setting), setting, order)
    assert (len(answer.times), len(answer.idle), answer.epochs) == (2 * (ITEMS // BATCH), 2 * (ITEMS // BATCH), 2)


def test_a_limit_ends_the_loop(setting: Setting):
    """Rule: a run ends with the step during which its time is over."""
    answer = run(Trainer(setting), setting, Order("synthetic", workers=0, seed=1, epochs=1000, limit=0.0))
    assert (len(answer.times), answer.epochs) == (1, 0)


def test_only_the_time_in_which_all_jobs_run_counts():
    """Rule: steps before the slowest start, its skipped seconds included, and after the first end are left out."""
    early = Answer(10.0, [11.0, 12.0, 13.0, 14.0], [0.5, 0.5, 0.5, 0.5], epochs=2)
    late = Answer(10.5, [12.5, 13.5, 15.5], [2.0, 0.25, 0.0], epochs=1)
    outcome = summary("two", [early, late], [(11.0, 0.0), (12.0, 1.0), (13.0, 0.5), (15.0, 0.0)], 8, 1.0, reads=28)
    assert outcome.seconds == 2.5
    assert outcome.rate == 5 * 8 / 2.5
    assert outcome.idle == pytest.approx((1.5 + 1.25) / 2 / 2.5)
    assert outcome.busy == 0.75
    assert outcome.reads == 28 / (7 * 8)
    assert outcome.epochs == 1

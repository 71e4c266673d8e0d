"""The evaluation that trains a convolutional network: its pictures, its loop, and the arithmetic of its page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
import torch

from lab.evaluation.convnet_figures import Group, bound_of
from lab.evaluation.convnet_job import Learner, Order, Setting, held_out, train
from lab.evaluation.origin import BUCKET
from lab.evaluation.shapes import CLASSES, FIGURES, Shapes, label, pixels
from larder import Client, Credentials
from rig.gateways import Settings, gateway
from rig.origin import ALICE, FakeOrigin, OriginThread

KEY = ("GWA", "gateway-secret-a")
SETTING = Setting("shapes", items=18, side=16, batch=4, epochs=2, width=2, held_out=10, workers=1)


@pytest.fixture(scope="module")
def store() -> Iterator[FakeOrigin]:
    """A bucket with the pictures."""
    with OriginThread() as running:
        for key, body in SETTING.data.objects():
            running.put(BUCKET, key, body)
        yield running


@pytest.fixture(scope="module")
def endpoint(store: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that knows the dataset."""
    home = tmp_path_factory.mktemp("gateway")
    with gateway(Settings(store.endpoint, home / "cache"), home) as running:
        address = f"http://127.0.0.1:{running.port}"
        Client(address, credentials=Credentials(*KEY)).register(SETTING.name, SETTING.data.digests(home))
        yield address


def test_pictures_follow_from_the_name():
    """Rule: a dataset has the same pictures every time, and one of another name has others."""
    first, again, other = (list(Shapes(name, 20, 3 * 16**2).contents()) for name in ("a", "a", "b"))
    assert first == again
    assert len({*first, *other}) == 40


def test_classes_are_equally_frequent_and_look_different():
    """Rule: every class has as many pictures as the others, and no two figures fill nearly the same pixels."""
    assert np.bincount([label(number) for number in range(50)]).tolist() == [5] * CLASSES
    x, y = np.meshgrid(np.linspace(-1.2, 1.2, 49), np.linspace(-1.2, 1.2, 49))
    filled = [figure(x, y) > 0 for figure in FIGURES.values()]
    assert min(np.mean(one != other) for one, other in combinations(filled, 2)) > 0.05


def test_a_figure_stands_out_of_its_ground():
    """Rule: the pixels of a picture are around two colours, not one."""
    drawn = pixels(next(Shapes("a", 1, 3 * 48**2).contents()), 48)
    assert drawn.shape == (48, 48, 3)
    assert drawn.reshape(-1, 3).std(axis=0).max() > 25


@pytest.mark.parametrize(
    ("source", "job", "options"),
    [
        ("s3", "", {}),
        ("loader", "", {}),
        ("loader", "substitutes", {}),
        ("loader", "exact", {"substitute": 1}),
        ("importance", "scored", {"unseen": 0.5}),
    ],
)
def test_every_way_has_whole_epochs(store: FakeOrigin, endpoint: str, source: str, job: str, options: dict[str, float]):
    """Rule: whatever feeds the network, an order has all its epochs; only importance leaves items out, and not in the first."""
    direct = source == "s3"
    keys = (ALICE.access_key_id, ALICE.secret_access_key) if direct else KEY
    order = Order(source, store.endpoint if direct else endpoint, keys, BUCKET, 1, job, options)
    epochs = list(train(SETTING, order, Learner(SETTING, 1, held_out(SETTING))))
    assert [epoch.seen for epoch in epochs] == [1.0, 0.5 if source == "importance" else 1.0]


def test_a_network_learns_the_pictures():
    """Rule: trained on a few pictures again and again, the network's losses fall to a fraction."""
    torch.manual_seed(0)
    pictures = held_out(SETTING)
    learner = Learner(SETTING, 1, pictures)
    losses = [float(learner.step(*pictures).mean()) for _ in range(30)]
    assert losses[-1] < losses[0] / 2


def test_the_page_leaves_out_the_first_epoch():
    """Rule: an epoch's reads are a mean, its seconds a median of those after the first; reads are those until a job's end."""
    group = Group([_course([9.0, 3.0, 5.0], [1.5, 2.0, 2.5]), _course([9.0, 3.0, 26.0], [1.6, 2.2, 2.9])])
    assert (group.epoch, group.reads) == (4.0, 0.5)
    assert bound_of(group, 0.25) == 0.75


def test_a_goal_is_reached_between_two_epochs():
    """Rule: the time to an accuracy is in proportion between the epochs around it, and missing if it was never reached."""
    group = Group([_course([10.0, 4.0, 4.0], [1.0, 2.0, 3.0])])
    assert group.reached(0.5, "seconds") == pytest.approx(12.0)
    assert group.reached(0.5, "reads") == pytest.approx(1.5)
    assert group.reached(0.9, "seconds") is None


def _course(seconds: list[float], reads: list[float]) -> dict[str, object]:
    epochs = [
        {"seconds": of, "accuracy": accuracy, "seen": 1.0}
        for of, accuracy in zip(seconds, (0.4, 0.6, 0.8), strict=True)
    ]
    return {"epochs": epochs, "reads": reads}

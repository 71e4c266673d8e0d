"""ImportanceSampler in torch's own loader: workers, batches in flight, ranks, saved states, refusals."""

import json
import multiprocessing
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader

from larder.base.errors import StateError
from larder.planner.draw import DrawRule
from larder.planner.importance import ImportancePlan
from larder.reading.frames import CHANGED
from larder.testing import MemorySource
from larder.torch import ImportanceSampler, watch
from tests.loader.making import (
    BATCH,
    ListeningJob,
    N,
    as_tensor,
    consume,
    index_of,
    map_of,
    whole,
)


def make(unseen=0.5, workers=0, persistent=False, **options):
    """A sampler, and a loader of a dataset in memory with it."""
    dataset = map_of(transform=index_of, ids=True)
    sampler = ImportanceSampler(dataset, unseen=unseen, **options)
    by = {"batch_sampler": sampler} if options.get("batch_size") else {"sampler": sampler, "batch_size": BATCH}
    return sampler, DataLoader(dataset, num_workers=workers, persistent_workers=persistent, **by)


def loss_of(ids):
    """A loss that does not change: later items are harder."""
    return torch.log1p(ids.double())


def train(sampler, batches):
    """Update with each batch; the items that came."""
    came = []
    for ids, items in batches:
        assert ids.tolist() == items.tolist()
        sampler.update(ids, loss_of(ids))
        came += ids.tolist()
    return came


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, BATCH])
def test_important_items_come_more_often(workers, batch_size):
    """Rule: the first epoch has every item once; later ones leave out the share, and repeat the items with the largest losses."""
    sampler, loader = make(workers=workers, batch_size=batch_size, guard=False)
    assert Counter(train(sampler, consume(loader))) == whole()
    came = Counter(train(sampler, consume(loader)))
    assert (came.total(), len(came)) == (N, N - N // 2)
    assert sampler.stats()["unseen"] == pytest.approx((N // 2) / N)
    often = {item for item, count in came.items() if count > 1}
    assert np.mean(list(often)) > 0.7 * N


@pytest.mark.parametrize("persistent", [False, True])
def test_any_number_of_workers_gives_the_same_epochs(persistent):
    """Rule: lists depend on seed, epoch and scores, not on workers; prefetched batches do not disturb the updates."""
    lists = []
    for workers in (0, 1, 2):
        sampler, loader = make(workers=workers, persistent=persistent and workers > 0, seed=5)
        lists.append([train(sampler, loader) for _ in range(3)])
        if workers and persistent:
            loader._iterator._shutdown_workers()
    assert lists[0] == lists[1] == lists[2]
    assert lists[0][0] != lists[0][1]


def test_ids_go_through_collation():
    """Rule: with ``ids=True`` a batch is the pair of ids and the former batch, for any kind of samples."""
    nested = next(iter(DataLoader(map_of(transform=as_tensor, ids=True), batch_size=3)))
    assert nested[0].tolist() == nested[1]["index"].tolist() == [0, 1, 2]
    plain = next(iter(DataLoader(map_of(ids=True), batch_size=3)))
    assert (plain[0].tolist(), plain[1]) == ([0, 1, 2], (b"0", b"1", b"2"))
    assert map_of(ids=True)[-1] == (N - 1, b"%d" % (N - 1))


def test_a_watched_loader_has_ids():
    """Rule: a watched loader gives the same pairs."""
    dataset = map_of(transform=index_of, ids=True)
    sampler = ImportanceSampler(dataset, unseen=0.1)
    assert (
        Counter(train(sampler, watch(DataLoader(dataset, batch_size=BATCH, sampler=sampler, num_workers=1)))) == whole()
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batches", [0, 1, 5, 12, 13])
def test_resuming_gives_the_rest(workers, batches):
    """Rule: a state has the batches that were updated, not those in flight; the next iteration has the rest, in order."""
    reference, loader = make(workers=workers, seed=3)
    epochs = [train(reference, loader) for _ in range(3)]
    sampler, loader = make(workers=workers, seed=3)
    train(sampler, loader)
    running = iter(loader)
    came = train(sampler, islice(running, batches))
    state = sampler.state_dict()
    del running
    resumed, loader = make(workers=workers, seed=99)
    resumed.load_state_dict(state)
    if batches < 13:
        came += train(resumed, loader)
        assert came == epochs[1]
    assert train(resumed, loader) == epochs[2]


def test_a_state_is_json():
    """Rule: a state survives JSON."""
    sampler, loader = make()
    train(sampler, loader)
    state = sampler.state_dict()
    assert json.loads(json.dumps(state)) == state


def test_a_batch_that_could_not_be_read_whole():
    """Rule: items that were skipped count as trained, so a resumed epoch does not repeat their batch."""
    source = MemorySource(N, failures={42: CHANGED, 7: CHANGED})
    dataset = map_of(source=source, transform=index_of, ids=True, on_missing="skip")
    sampler = ImportanceSampler(dataset, unseen=0.0)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    came = train(sampler, islice(loader, 10))
    resumed = ImportanceSampler(dataset, unseen=0.0)
    resumed.load_state_dict(sampler.state_dict())
    came += train(resumed, DataLoader(dataset, batch_size=BATCH, sampler=resumed))
    assert Counter(came) == whole() - Counter([42, 7])


def test_an_iteration_without_training_is_repeated():
    """Rule: an iterator without training, as some frameworks make, costs no epoch."""
    sampler, loader = make(workers=1)
    iterator = iter(loader)
    next(iterator)
    del iterator
    assert Counter(train(sampler, loader)) == whole()
    assert sampler.stats()["epoch"] == 0


def test_the_epoch_can_be_set():
    """Rule: ``set_epoch`` gives the next iteration its number, as for a `DistributedSampler`."""
    one, loader = make()
    first = train(one, loader)
    one.set_epoch(7)
    seventh = train(one, loader)
    assert one.stats()["epoch"] == 7
    other, loader = make()
    assert train(other, loader) == first
    other.set_epoch(7)
    assert train(other, loader) == seventh


def test_setting_the_epoch_of_a_state_keeps_its_rest():
    """Rule: a framework that sets the epoch after loading a state of it does not begin it again."""
    sampler, loader = make()
    came = train(sampler, islice(loader, 4))
    resumed, loader = make()
    resumed.load_state_dict(sampler.state_dict())
    resumed.set_epoch(0)
    assert Counter(came + train(resumed, loader)) == whole()


@pytest.mark.parametrize(("drop_last", "expected"), [(False, 13), (True, 12)])
def test_batches(drop_last, expected):
    """Rule: with ``batch_size`` the sampler gives batches, and its length is their number."""
    sampler, loader = make(batch_size=BATCH, drop_last=drop_last)
    batches = consume(loader)
    assert len(sampler) == len(loader) == len(batches) == expected
    assert {len(ids) for ids, _ in batches} <= {BATCH, N % BATCH}


def test_weights_are_p_over_q():
    """Rule: the weighted mean over epochs of a list is the mean over all items, on the ids' device and in float32."""
    sampler, loader = make(unseen=0.5, guard=False)
    train(sampler, loader)
    values = torch.arange(N).double() ** 2
    means = []
    for _ in range(300):
        came = torch.tensor([index for ids, _ in loader for index in ids.tolist()])
        weights = sampler.weights(came)
        assert weights.dtype == torch.float32
        means.append(float((weights * values[came]).mean()))
        sampler.update(came, loss_of(came))
    assert np.mean(means) == pytest.approx(float(values.mean()), rel=0.02)


# --- ranks


def _rank(rank, meeting, results, states):
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    try:
        sampler, loader = make(workers=2)
        if states:
            sampler.load_state_dict(states[rank])
        first = train(sampler, loader)
        second = train(sampler, islice(loader, 3))
        results.put((rank, first, second, sampler.state_dict(), None))
        train(sampler, loader)
    except StateError as error:
        results.put((rank, [], [], {}, str(error)))
    finally:
        distributed.destroy_process_group()


def across_ranks(tmp_path, states=()):
    """The results of two training processes with two workers each, by rank."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    meeting = tmp_path / f"meeting-{len(states)}"
    ranks = [context.Process(target=_rank, args=(rank, meeting, results, states)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = {result[0]: result[1:] for result in (results.get(timeout=60) for _ in ranks)}
    for process in ranks:
        process.join()
    return [found[rank] for rank in range(2)]


def test_ranks_share_one_list(tmp_path):
    """Rule: shares are equally long, and their union is the list; the ranks share their scores."""
    (first, second, state, _), (other_first, other_second, _, _) = across_ranks(tmp_path)
    assert len(first) == len(other_first) == 52
    assert (Counter(first) + Counter(other_first)).keys() == whole().keys()
    alone = ImportancePlan(N, DrawRule(0.5))
    alone.load_state_dict(state)
    listed = alone.drawn.order.tolist()
    assert [listed[0:48:2], listed[1:48:2]] == [second, other_second]


def test_ranks_resume_from_one_state(tmp_path):
    """Rule: the state of one rank is enough for all, and for another number of ranks: the rest of the list, disjoint."""
    _, (_, _, state, _) = across_ranks(tmp_path)
    plan = ImportancePlan(N, DrawRule(0.5))
    plan.load_state_dict(state)
    rest = Counter(plan.rest().tolist())
    first, other = (result[0] for result in across_ranks(tmp_path, [state, state]))
    assert Counter(first + other) == rest
    alone, loader = make()
    alone.load_state_dict(state)
    assert Counter(train(alone, loader)) == rest


def test_ranks_refuse_states_of_different_steps(tmp_path):
    """Rule: all ranks raise, rather than training on different lists."""
    sampler, loader = make(ranks=(0, 2))
    train(sampler, islice(loader, 2))
    one = sampler.state_dict()
    train(sampler, loader)
    results = across_ranks(tmp_path, [one, sampler.state_dict()])
    assert ["another list than rank 0" in str(error) for *_, error in results] == [True, True]


def test_ranks_that_cannot_exchange_have_parts():
    """Rule: without ``torch.distributed`` each rank draws from its own fixed items, so shares stay disjoint."""
    came = []
    for rank in range(2):
        sampler, loader = make(ranks=(rank, 2), guard=False)
        first, second = train(sampler, loader), train(sampler, loader)
        assert len(first) == len(second) == len(sampler) == 52
        assert set(second) < set(first)
        came.append(set(first))
    assert not came[0] & came[1]
    assert came[0] | came[1] == set(range(N))


def test_ranks_of_the_environment(monkeypatch):
    """Rule: ranks come from the launcher's variables, as for all of Larder."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    sampler, loader = make()
    assert len(sampler) == len(train(sampler, loader)) == 26


# --- what is refused, and what is not


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"unseen": 0.95}, ValueError, "unseen must be a share from 0 to 0.9, not 0.95"),
        ({"unseen": -0.1}, ValueError, "unseen must be"),
        ({"unseen": float("nan")}, ValueError, "unseen must be"),
        ({"unseen": "paper"}, ValueError, "'multinomial', not 'paper'"),
        ({"unseen": 0.1, "repeats": 1}, ValueError, "repeats must be a number above 1"),
        ({"unseen": 0.1, "batch_size": 0}, ValueError, "batch_size must be"),
        ({"unseen": 0.1, "ranks": (2, 2)}, ValueError, "rank must be"),
        ({"unseen": 0.1, "share": 1}, TypeError, "unknown option share; the options are unseen, seed"),
        ({"unseen": 0.1, "seed": 0.5}, ValueError, "seed must be a whole number, not 0.5"),
        ({"unseen": 0.1, "ranks": 2}, ValueError, r"ranks must be \(rank, number of ranks\), not 2"),
    ],
)
def test_wrong_options(options, error, message):
    """Rule: a value that makes no sense is refused by its name, when the sampler is made."""
    with pytest.raises(error, match=message):
        ImportanceSampler(map_of(), **options)


@pytest.mark.parametrize(
    ("ids", "losses", "error", "message"),
    [
        (None, torch.ones(2), TypeError, "losses without ids: make the dataset with ids=True"),
        (torch.tensor([0, N]), torch.ones(2), IndexError, f"item {N} of a dataset of {N} items"),
        (torch.tensor([0, -1]), torch.ones(2), IndexError, "item -1 of a dataset"),
        (torch.tensor([0.0, 1.0]), torch.ones(2), TypeError, "ids must be whole numbers"),
        (torch.tensor([0, 1]), torch.tensor(0.5), ValueError, "per_sample"),
        (torch.tensor([0, 1]), torch.ones(2, 3), ValueError, r"shape \(2, 3\) for ids of shape \(2,\)"),
        (torch.tensor([0, 1]), ["a", "b"], TypeError, "losses must be numbers"),
    ],
)
def test_wrong_updates(ids, losses, error, message):
    """Rule: an update that cannot be meant is refused at the call."""
    sampler, _ = make()
    with pytest.raises(error, match=message):
        sampler.update(ids, losses)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.tensor([0, N]), IndexError, f"item {N} of a dataset of {N} items"),
        ([-1], IndexError, "item -1 of a dataset"),
        (torch.tensor([0.5]), TypeError, "ids must be whole numbers"),
        (torch.tensor(3), ValueError, "one id for each sample"),
        (None, ValueError, "one id for each sample"),
    ],
)
def test_weights_of_what_is_no_item(ids, error, message):
    """Rule: a weight is an item's of the list, or an error: the wrong one would change gradients silently."""
    sampler, _ = make()
    with pytest.raises(error, match=message):
        sampler.weights(ids)


def test_weights_of_another_ranks_items():
    """Rule: ranks that cannot exchange have weights of their own items only."""
    ranks = [make(ranks=(rank, 2)) for rank in range(2)]
    mine, others = (train(sampler, loader) for sampler, loader in ranks)
    sampler = ranks[0][0]
    assert len(sampler.weights(mine[:5])) == 5
    with pytest.raises(IndexError, match="is not one of those that rank 0 draws from"):
        sampler.weights(others[:1])


def test_losses_one_by_one():
    """Rule: a list of single losses is as good as a tensor of them, with gradients too."""
    sampler, _ = make()
    sampler.update([torch.tensor(3), 4], [torch.tensor(1.0, requires_grad=True), torch.tensor(2.0)])
    assert sampler.stats()["updated"] == 2


def test_losses_that_are_not_finite():
    """Rule: NaN and infinite losses, as mixed precision has them now and then, are counted and change nothing."""
    sampler, loader = make()
    train(sampler, loader)
    before = sampler.state_dict()["scores"]
    sampler.update(torch.tensor([1, 2]), torch.tensor([float("nan"), float("inf")]))
    assert sampler.stats()["not_finite"] == 2
    assert sampler.state_dict()["scores"] == before


@pytest.mark.parametrize(("dtype", "grad"), [(torch.float16, False), (torch.bfloat16, False), (torch.float32, True)])
def test_losses_of_any_kind(dtype, grad):
    """Rule: losses of lower precision, and losses with gradients, are accepted."""
    sampler, _ = make()
    sampler.update(torch.tensor([3, 4]), torch.tensor([1.0, 2.0], dtype=dtype, requires_grad=grad))
    assert sampler.stats()["updated"] == 2


def test_an_epoch_without_updates_is_followed_by_a_whole_one():
    """Rule: a training loop that stops updating gets every item in every epoch."""
    sampler, loader = make()
    train(sampler, loader)
    for expected in (False, True, True):
        came = Counter(int(index) for ids, _ in loader for index in ids)
        assert (came == whole()) is expected


def test_an_epoch_after_lost_accuracy_is_a_whole_one():
    """Rule: a loop that reports the accuracy of its model gets every item once while it is below the best; a tensor will do."""
    sampler, loader = make()
    for accuracy in (0.9, torch.tensor(0.5)):
        train(sampler, loader)
        sampler.accuracy(accuracy)
    assert Counter(train(sampler, loader)) == whole()


def test_wrong_accuracy():
    """Rule: a loss reported in place of an accuracy is refused."""
    with pytest.raises(ValueError, match=r"accuracy must be a number from 0 on, such as a share or percent, not -0\.3"):
        make()[0].accuracy(-0.3)


def test_a_loop_that_stops_updating_reports_nothing():
    """Rule: after an epoch without updates nothing is sent to the gateways, so their scores age; once updates resume, the next
    epoch is reported again."""
    job = ListeningJob()
    dataset = map_of(transform=index_of, ids=True, job=job)
    sampler = ImportanceSampler(dataset, unseen=0.5)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    train(sampler, loader)
    for _ in range(3):
        consume(loader)
    assert job.epochs == [0, 1]
    train(sampler, loader)
    consume(loader)
    assert job.epochs == [0, 1, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"items": 5}, "5 items"),
        ({"version": 99}, "version 99"),
        ({"scores": "!"}, "damaged"),
        ({"scores": ""}, "damaged"),
        ({"basis": 7}, "damaged"),
        ({"unseen": 3}, "unseen must be"),
        ({"epoch": None}, "damaged"),
        ({"taken": "x"}, "damaged"),
        ({"taken": -5}, "-5 entries of 103 cannot be trained"),
        ({"taken": 1 << 40}, "cannot be trained"),
        ({"length": 3}, "a list of 3 entries is none of 103 items"),
        ({"length": 1 << 40}, "is none of 103 items"),
        ({"level": float("nan")}, "level nan"),
        ({"batch": -1}, "batch -1"),
        ({"epoch": -7}, "there is no epoch -7"),
        ({"part": [2, 2]}, "there is no rank 2 of 2"),
        ({"part": [0, 0]}, "there is no rank 0 of 0"),
        ({"accuracies": []}, "damaged"),
        ({"accuracies": ["x", None, None]}, "damaged"),
        ({"topped": ""}, "damaged"),
    ],
)
def test_damaged_states(change, message):
    """Rule: a state that cannot be right is refused with its reason."""
    sampler, loader = make()
    train(sampler, islice(loader, 3))
    with pytest.raises(StateError, match=message):
        make()[0].load_state_dict({**sampler.state_dict(), **change})


def test_what_is_no_state():
    """Rule: an empty checkpoint is refused in the same words."""
    with pytest.raises(StateError, match="expected a dictionary from state_dict"):
        make()[0].load_state_dict(None)


def test_a_refused_state_changes_nothing():
    """Rule: a refused state leaves the sampler unchanged."""
    sampler, loader = make()
    train(sampler, islice(loader, 3))
    before = sampler.state_dict()
    with pytest.raises(StateError):
        sampler.load_state_dict({**before, "seed": 7, "epoch": 3, "basis": "!"})
    assert sampler.state_dict() == before


def test_fewer_items_than_ranks():
    """Rule: ranks that cannot exchange need an item each; all of them raise."""
    for rank in range(3):
        with pytest.raises(ValueError, match="2 items are too few for 3 ranks"):
            list(ImportanceSampler([0, 1], unseen=0.5, ranks=(rank, 3)))


def test_an_empty_dataset():
    """Rule: an empty dataset raises an error at its first use."""
    with pytest.raises(ValueError, match="a dataset of 0 items cannot be sampled"):
        next(iter(ImportanceSampler([], unseen=0.1)))

"""Simulated workers under a virtual clock, and epochs for them."""

from collections import Counter, deque

from larder.base.errors import GatewayUnavailable
from larder.pipelines.crew import HEARTBEAT
from larder.pipelines.elements import encode
from larder.pipelines.splits import MOST_DEATHS, PlannedItems, Split, SplitLedger
from larder.pipelines.stages import StageCounts
from larder.pipelines.workers import Broken, Ended, Heartbeat, SplitPart, Started
from larder.planner import EpochOrder, EpochPlan, Layout, Progress, Shard


class SimulatedWorkers:
    """Workers that die, fall silent, repeat results and lose unsent ones, by a seeded chance."""

    advice = "Look at them"

    def __init__(self, chance, trouble, deadly=()):
        self.chance, self.trouble, self.deadly = chance, trouble, deadly
        self.now = 0.0
        self.splits: dict[int, deque[Split]] = {}
        self.silent: set[int] = set()
        self.retiring: set[int] = set()
        self.deaths = Counter()
        self.events = []
        self.most = 0
        self.back = 0.0

    def start(self, worker):
        """Start a worker that is ready at once."""
        self.splits[worker] = deque()
        self.most = max(self.most, len(self.splits))
        self.events.append((worker, Started()))

    def assign(self, worker, split):
        """Assign a split; a dead worker ignores it. A silent worker dies of it, unless that would be the split's third death."""
        if worker in self.splits:
            self.splits[worker].append(split)
        if worker in self.silent:
            self.deaths[split.indices[0]] += 1
            if self.deaths[split.indices[0]] >= MOST_DEATHS:
                self.silent.discard(worker)

    def retire(self, worker):
        """Let the worker end when it has no split left."""
        self.retiring.add(worker)

    def kill(self, worker):
        """Kill a worker; its unsent results are lost."""
        if self.splits.pop(worker, None) is not None:
            self.events.append((worker, Ended("exit status -9")))

    def close(self):
        """Forget all."""
        self.splits.clear()

    def remote(self, worker):
        """These are the trainer's machine's."""
        return False

    def poll(self, seconds):
        """Every worker takes at most one step. Sometimes the gateway restarts."""
        self.now += self.chance.uniform(0, HEARTBEAT)
        if self.chance.random() < self.trouble / 4:
            self.restart_gateway()
        for worker in list(self.splits):
            self.step(worker)
        return self.events

    def restart_gateway(self):
        """For a while no worker gets items; sometimes for longer than one of them waits, which is an error of the epoch."""
        self.back = self.now + self.chance.uniform(0, 10 * HEARTBEAT)
        if self.splits and self.chance.random() < 0.5:
            worker = self.chance.choice(list(self.splits))
            self.events.append((worker, Broken(GatewayUnavailable("http://gateway"))))

    def step(self, worker):
        """Die, fall silent, or work."""
        if worker in self.silent:
            return
        draw = self.chance.random()
        at = [split.indices[0] for split in self.splits[worker]]  # a death counts for one of these
        if draw < 1.5 * self.trouble and all(self.deaths[index] < MOST_DEATHS - 1 for index in at):
            self.deaths.update(at)
            if draw < self.trouble or not at:
                self.kill(worker)
            else:
                self.silent.add(worker)
            return
        self.events.append((worker, Heartbeat(-1, -1, "", 0.0)))
        if self.splits[worker] and draw < 0.8 and self.now >= self.back:
            self.compute(worker)
        elif not self.splits[worker] and worker in self.retiring:
            del self.splits[worker]
            self.events.append((worker, Ended()))

    def compute(self, worker):
        """The next part of the first split; sometimes sent twice, sometimes lost with the worker."""
        split = self.splits[worker][0]
        count = 1 if split.careful else self.chance.randint(1, len(split.indices))
        computed = split.indices[:count]
        if any(index in self.deadly for index in computed):
            self.kill(worker)
            return
        values = [memoryview(encode(index)) for index in computed]
        part = SplitPart(split.number, split.first, values, {0: StageCounts(count, 0.01 * count)})
        self.events += [(worker, part)] * (2 if self.chance.random() < self.trouble else 1)
        if count == len(split.indices):
            self.splits[worker].popleft()
        else:
            self.splits[worker][0] = Split(
                split.number, split.epoch, split.indices[count:], split.first + count, split.careful
            )


def epoch_of(items, batch, world=1, rank=0, progress=None, epoch=0):
    """A plan of an epoch, and the state in which it begins."""
    order = EpochOrder(Layout(items, 10, 10, "shuffled", 7), seed=3, epoch=epoch)
    start = progress or Progress.start("d" * 64, order, rank, world)
    plan = EpochPlan(order, Shard(rank, world, 0, 1), batch_size=batch, substitute=1, progress=start, dataset="d" * 64)
    return plan, start


def ledger_of(items, batch, numbers):
    """The ledger of an epoch."""
    return SplitLedger(PlannedItems(epoch_of(items, batch)[0]), 0, numbers)


def in_order(items, batch):
    """The items of an epoch in its order."""
    planned, found = PlannedItems(epoch_of(items, batch)[0]), []
    while (some := planned.next_items(batch)) is not None:
        found += some.indices
    return found

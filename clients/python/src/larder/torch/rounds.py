"""Which epoch an iteration is, agreed on by the workers that serve it without the training loop saying anything.

Every item comes exactly once only if all workers of a `DataLoader` order the same epoch. They are started anew for each
iteration or are kept, start at different times, and the fastest may have ended before the slowest starts. So the decision is
written down where all of them can read it: in an unlinked file (memory, where the system has `memfd_create`) that workers
inherit by fork, or receive by spawn and forkserver. It holds one *round* per training process: its epoch, and who has joined it
and who has finished it. The file is read and written under a POSIX record lock, which ends with its process, so that a worker
that is killed leaves neither a lock nor a file behind.

Rules. An iteration of a loader is one round. A worker joins by `join`, once per iteration, with a tag that is the same for all
workers of one iteration. Whoever finds a round with his tag that he has not joined, joins it. Whoever does not, opens the next
round, whose epoch is one higher if every worker of the round before has finished, and otherwise the same again.

Why all workers of an iteration get the same epoch: the first of them to join finds a round of another tag, or, where two
iterations happen to have the same tag, one that he has joined already; he opens a round. Every other one finds this round
with his tag and has not joined it, however much later he comes, and whatever the others have done meanwhile: nobody opens
another round before the next iteration, because each worker joins once per iteration. The decision is taken once, under the
lock, by the first to join, so a worker of the round before who finishes late changes nothing: `finish` counts only for the
round that is on. (The tag: the loader's random base seed, the number of workers, and how many iterations the worker has served.
Two iterations have the same one only if somebody seeds torch alike before both. Then the argument needs that each worker
joined the first; one that was killed before it could makes the epoch come again.)

What a worker cannot know is whether the training loop received what it made. A round is finished when every worker has made
its last batch. A loop that breaks off while the last batches are waiting in the loader may therefore be taken for complete.
`larder.torch.watch` knows, and says it by `seek` before each iteration; so does a loop that calls `set_epoch`.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any, TypeVar

from larder.errors import StateError

T = TypeVar("T")

_HEADER = struct.Struct("<QQ")
"""Where the content is, and how long it is. Two places take turns, and the header, which the system writes whole, comes last: a
worker that is killed while it writes leaves what was there before."""
_PLACES = (1 << 12, 1 << 24)
_ONCE = 1 << 40
_KEPT = 4


@dataclass(slots=True)
class Round:
    """One iteration of a loader: which epoch, from which saved state on, and which of its workers have come how far.

    Args:
        number: counts up; a round that is over is known by it.
        epoch: what the workers order.
        start: saved state in which the epoch begins, or ``None`` for a whole epoch.
        session: of the training process's side of the iteration, which may be watched; ``None``: it is not, as far as is known.
        tag: what the workers of this iteration have in common; ``None``: nobody has joined yet.
        workers: how many there are.
        joined: their numbers.
        finished: those that have made their last batch.
        nothing_left: those that joined with a saved state of their own that had nothing left of the epoch.
    """

    number: int = 0
    epoch: int = 0
    start: dict[str, Any] | None = None
    session: str | None = None
    tag: list[int] | None = None
    workers: int = 0
    joined: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    nothing_left: list[int] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every worker has made its last batch."""
        return self.tag is not None and set(self.finished) >= set(range(self.workers))

    def following(self, tag: list[int], workers: int) -> Round:
        """The round after this one."""
        done = self.complete
        epoch, start = (self.epoch + 1, None) if done else (self.epoch, self.start)
        return Round(self.number + 1, epoch, start, self.session, tag, workers)


class Rounds:
    """The round that is on, shared by a training process and its workers. See the module for the rules.

    Copies made by ``copy`` and ``pickle`` are independent and go on from the same epoch; only worker processes share.
    """

    def __init__(self) -> None:
        self._adopt(_anonymous_file(), os.getpid())
        self._write({})

    def seek(
        self,
        epoch: int,
        start: Mapping[str, Any] | None = None,
        *,
        session: str | None = None,
        unless_workers: bool = False,
    ) -> None:
        """Decide what the next iteration is; workers that are at work do not change it any more.

        Raises:
            StateError: with ``unless_workers``, when worker processes have already begun an iteration.
        """
        with self._locked() as rounds:
            now = self._round(rounds)
            if unless_workers and now.tag is not None and now.tag[0]:
                raise StateError(
                    "worker processes have already begun to read from this dataset, so batches made before this state was "
                    "loaded may be on their way: load it before the first iteration, or use larder.torch.watch(loader), "
                    "whose load_state_dict can be called at any time"
                )
            rounds[self._owner()] = Round(now.number + 1, epoch, None if start is None else dict(start), session)

    def now(self) -> Round:
        """The round that is on, or that will be opened when nobody has joined it yet."""
        with self._locked() as rounds:
            return self._round(rounds)

    def join(self, worker: int, workers: int, tag: list[int]) -> Round:
        """Take part in the iteration that the tag belongs to."""
        with self._locked() as rounds:
            now = self._round(rounds)
            if now.tag != tag or now.workers != workers or worker in now.joined:
                now = now.following(tag, workers)
            now.joined.append(worker)
            rounds[self._owner()] = now
            return now

    def restore(self, worker: int, workers: int, tag: list[int], *, epoch: int, nothing_left: bool) -> Round:
        """Take part with a saved state of this worker's own, which gives the epoch (torchdata's StatefulDataLoader).

        Raises:
            StateError: another worker of the iteration restored a state of another epoch.
        """
        with self._locked() as rounds:
            now = self._round(rounds)
            if now.tag != tag or now.workers != workers or worker in now.joined:
                now = Round(now.number + 1, epoch, None, now.session, tag, workers)
            if now.epoch != epoch:
                raise StateError(
                    f"one worker's state is of epoch {now.epoch}, that of worker {worker} of epoch {epoch}"
                )
            now.joined.append(worker)
            if nothing_left:
                now.nothing_left.append(worker)
                now.finished.append(worker)
            rounds[self._owner()] = now
            return now

    def settle(self, joined: Round) -> int:
        """The epoch of a round that this process has joined, when the first batch is asked for.

        By then all workers have joined, if they restored states of their own. If each one's state says that it had nothing left
        to do, the state was saved at the end of an epoch, and this iteration is the next one.
        """
        with self._locked() as rounds:
            now = self._round(rounds)
            if now.number != joined.number:
                return joined.epoch
            if set(now.nothing_left) >= set(range(now.workers)):
                now.epoch, now.finished, now.nothing_left = now.epoch + 1, [], []
                rounds[self._owner()] = now
            return now.epoch

    def finish(self, number: int, worker: int) -> None:
        """Worker ``worker`` has made its last batch of round ``number``; nothing if that round is over."""
        with self._locked() as rounds:
            now = self._round(rounds)
            if now.number == number and worker not in now.finished:
                now.finished.append(worker)
                rounds[self._owner()] = now

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value of JSON types that is made once for all processes that share this; the others wait for it.

        Of values whose names have the same beginning before a ``/``, only the newest few are kept.
        """
        # A lock beyond the file's end, so that whoever only asks for the epoch does not wait for a slow gateway.
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _ONCE)
        try:
            with self._locked() as rounds:
                values = rounds.setdefault("once", {})
            if name not in values:
                values[name] = make()
                family = [other for other in values if "/" in other and other.split("/")[0] == name.split("/")[0]]
                for other in family[:-_KEPT]:
                    del values[other]
                with self._locked() as rounds:
                    rounds["once"] = values
            value: T = values[name]
            return value
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _ONCE)

    def as_worker(self) -> None:
        """Say that this process is a worker: what it does belongs to the training process that started it."""
        self._worker = os.getpid()

    def _owner(self) -> str:
        """The training process whose round this is. A file may be shared by several: ranks that one launcher started."""
        process = os.getpid()
        if self._worker != process:
            return str(process)
        return str(self._sender if self._received == process else os.getppid())

    def _round(self, rounds: dict[str, Any]) -> Round:
        found = rounds.get(self._owner())
        if found is not None:
            return Round(**found)
        # A process that was given the dataset by another one, and trains with it itself, goes on from where that one was.
        origin = rounds.get(str(self._sender))
        return Round() if origin is None else Round(epoch=origin["epoch"], start=origin["start"])

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        """The rounds by owner; what is changed in them is written back."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1)
        try:
            rounds = self._read()
            yield rounds
            self._write({owner: asdict(r) if isinstance(r, Round) else r for owner, r in rounds.items()})
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)

    def _read(self) -> dict[str, Any]:
        place, length = _HEADER.unpack(os.pread(self._fd, _HEADER.size, 0))
        rounds: dict[str, Any] = json.loads(os.pread(self._fd, length, place))
        return rounds

    def _write(self, rounds: dict[str, Any]) -> None:
        content = json.dumps(rounds).encode()
        before = os.pread(self._fd, _HEADER.size, 0)
        place = _PLACES[before[:8] == _PLACES[0].to_bytes(8, "little")]
        os.pwrite(self._fd, content, place)
        os.pwrite(self._fd, _HEADER.pack(place, len(content)), 0)

    def _adopt(self, fd: int, sender: int) -> None:
        self._fd = fd
        self._sender = sender
        self._received = os.getpid()
        self._worker = 0
        weakref.finalize(self, os.close, fd)

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            return {"fd": DupFd(self._fd), "sender": os.getpid()}
        now = self.now()
        return {"epoch": now.epoch + now.complete, "start": None if now.complete else now.start}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "fd" in state:
            self._adopt(state["fd"].detach(), state["sender"])
            return
        self._adopt(_anonymous_file(), os.getpid())
        self._write({})
        self.seek(state["epoch"], state["start"])


def _anonymous_file() -> int:
    """A descriptor of a file that has no name and ends with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("larder-rounds")
    fd, path = tempfile.mkstemp(prefix="larder-rounds-")
    os.unlink(path)
    return fd

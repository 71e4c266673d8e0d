"""Agreement on the epoch of an iteration among the workers of a `DataLoader`, without help from the training loop.

Every item comes exactly once only if all workers of a loader order the same epoch. Workers are restarted or kept for each
iteration, start at different times, and the fastest may end before the slowest starts. So the decision is recorded where all
workers can read it: in an unlinked file (memory, on systems with `memfd_create`) that workers inherit by fork, or receive by
spawn and forkserver. It holds one *round* per training process: its epoch, and which workers have joined and finished it. A POSIX
record lock guards the file. The lock ends with its process, so a killed worker leaves neither a lock nor a file behind. It does
not exclude threads of the same process, such as one that saves checkpoints; a lock within the process does.

Rules. An iteration of a loader is one round. A worker calls `join` once per iteration, with a tag that all workers of the
iteration share. If the current round has this tag and the worker has not joined it, the worker joins it. Otherwise it opens the
next round. The next epoch is one higher if all workers of the previous round have finished; otherwise the epoch is repeated.

Why all workers of an iteration get the same epoch: the first worker to join sees a round with another tag or, if two iterations
happen to share a tag, a round that it has already joined. It opens a new round. Every other worker, however late, sees this round
with its own tag, which it has not joined: no other round can open before the next iteration, because each worker joins once per
iteration. The first worker to join decides once, under the lock, so a late `finish` of the previous round changes nothing:
`finish` counts only for the current round. (The tag consists of the loader's random base seed, the number of workers, and the
number of iterations that the worker has served. Two iterations share a tag only if torch is seeded equally before both. Then the
argument requires that each worker joined the first; if one was killed before it joined, the epoch is repeated.)

A worker cannot know whether the training loop received its batches. A round is finished when every worker has made its last
batch, so a loop that breaks off while the last batches wait in the loader may count as complete. `larder.torch.watch` knows,
and calls `seek` before each iteration; so does a loop that calls `set_epoch`.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any, TypeVar

from larder.base.anonymous import anonymous_file
from larder.base.errors import StateError

T = TypeVar("T")

_HEADER = struct.Struct("<QQ")
"""Offset and length of the content."""
_OFFSETS = (1 << 12, 1 << 24)
"""Bytes of the file: two alternating places for the content. The header is written last and atomically, so a worker that is
killed while it writes leaves the previous content."""
_ONCE_LOCK = 1 << 40
"""Offset, beyond the end of the file, of the lock for `Rounds.once`."""
_KEPT_VALUES = 4
"""Values of one family that `Rounds.once` keeps."""


@dataclass(slots=True)
class Round:
    """One iteration of a loader: its epoch, the state it starts from, and the progress of its workers.

    Args:
        number: increases with every round.
        epoch: epoch of the round.
        start: saved state in which the epoch begins; ``None`` for a whole epoch.
        session: id of a watched iteration in the training process; ``None`` if it is not watched.
        tag: shared by the workers of the iteration; ``None`` before the first has joined.
        workers: number of workers.
        joined: numbers of the workers that have joined.
        finished: numbers of those that have made their last batch.
        nothing_left: numbers of those whose saved state had nothing left to do.
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
        """The next round."""
        done = self.complete
        epoch, start = (self.epoch + 1, None) if done else (self.epoch, self.start)
        return Round(self.number + 1, epoch, start, self.session, tag, workers)


class Rounds:
    """The current round, shared by a training process and its workers. The module has the rules.

    Copies by ``copy`` and ``pickle`` are independent and continue from the same epoch; only worker processes share.
    """

    def __init__(self) -> None:
        self._adopt(anonymous_file("larder-rounds"), os.getpid())
        self._write({})

    def seek(
        self,
        epoch: int,
        start: Mapping[str, Any] | None = None,
        *,
        session: str | None = None,
        unless_workers: bool = False,
    ) -> None:
        """Set the next iteration's epoch and start. Active workers no longer affect it.

        Raises:
            StateError: with ``unless_workers``, if worker processes have already begun an iteration.
        """
        with self._locked() as rounds:
            now = self._round(rounds)
            if unless_workers and now.tag is not None and now.tag[0]:
                raise StateError(
                    "worker processes have already begun to read from this dataset, so batches from before this state may "
                    "be in flight: load the state before the first iteration, or use larder.torch.watch(loader), whose "
                    "load_state_dict can be called at any time"
                )
            rounds[self._owner()] = Round(now.number + 1, epoch, None if start is None else dict(start), session)

    def now(self) -> Round:
        """The current round, or the next one if no worker has joined it yet."""
        with self._alone():
            return self._round(self._read())

    def join(self, worker: int, workers: int, tag: list[int]) -> Round:
        """Join the iteration with this tag."""
        with self._locked() as rounds:
            now = self._round(rounds)
            if now.tag != tag or now.workers != workers or worker in now.joined:
                now = now.following(tag, workers)
            now.joined.append(worker)
            rounds[self._owner()] = now
            return now

    def restore(self, worker: int, workers: int, tag: list[int], *, epoch: int, nothing_left: bool) -> Round:
        """Join with this worker's own saved state, which determines the epoch (torchdata's StatefulDataLoader).

        Raises:
            StateError: another worker of the iteration restored another epoch.
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
        """Determine the final epoch of a joined round, when the first batch is requested.

        By then, all workers that restored states have joined. If none had anything left to do, the states were saved at the end
        of an epoch, and this iteration is the next epoch.
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
        """Record that ``worker`` has made its last batch of round ``number``; no effect if that round is over."""
        with self._locked() as rounds:
            now = self._round(rounds)
            if now.number == number and worker not in now.finished:
                now.finished.append(worker)
                rounds[self._owner()] = now

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value of JSON types, computed by one of the sharing processes while the others wait.

        Values whose names share the part before a ``/`` form a family; the newest few of a family are kept.
        """
        # A separate lock, so that a process that needs only the epoch does not wait for a slow gateway.
        with self._alone(_ONCE_LOCK):
            with self._alone():
                values = self._read().get("once", {})
            if name not in values:
                values[name] = make()
                family = [other for other in values if "/" in other and other.split("/")[0] == name.split("/")[0]]
                for other in family[:-_KEPT_VALUES]:
                    del values[other]
                with self._locked() as rounds:
                    rounds["once"] = values
            value: T = values[name]
            return value

    def as_worker(self) -> None:
        """Mark this process as a worker: it acts for the training process that started it."""
        self._worker = os.getpid()

    def _owner(self) -> str:
        """The training process that owns the round; several ranks of one launcher may share the file."""
        process = os.getpid()
        if self._worker != process:
            return str(process)
        return str(self._sender if self._received == process else os.getppid())

    def _round(self, rounds: dict[str, Any]) -> Round:
        own = rounds.get(self._owner())
        if own is not None:
            return Round(**own)
        # A process that received the dataset and trains alone continues at the sender's position.
        origin = rounds.get(str(self._sender))
        return Round() if origin is None else Round(epoch=origin["epoch"], start=origin["start"])

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        """The rounds by owner; changes are written back."""
        with self._alone():
            rounds = self._read()
            yield rounds
            self._write({owner: asdict(r) if isinstance(r, Round) else r for owner, r in rounds.items()})

    @contextmanager
    def _alone(self, lock: int = 0) -> Iterator[None]:
        """Lock one byte of the file against other threads of this process and against other processes."""
        with self._threads[lock]:
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, lock)
            try:
                yield
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, lock)

    def _renew_locks(self) -> None:
        """Forget locks that a thread of the parent process held when it forked."""
        self._threads = {0: threading.Lock(), _ONCE_LOCK: threading.Lock()}

    def _read(self) -> dict[str, Any]:
        offset, length = _HEADER.unpack(os.pread(self._fd, _HEADER.size, 0))
        rounds: dict[str, Any] = json.loads(os.pread(self._fd, length, offset))
        return rounds

    def _write(self, rounds: dict[str, Any]) -> None:
        content = json.dumps(rounds).encode()
        before = os.pread(self._fd, _HEADER.size, 0)
        offset = _OFFSETS[before[:8] == _OFFSETS[0].to_bytes(8, "little")]
        os.pwrite(self._fd, content, offset)
        os.pwrite(self._fd, _HEADER.pack(offset, len(content)), 0)

    def _adopt(self, fd: int, sender: int) -> None:
        self._fd = fd
        self._sender = sender
        self._received = os.getpid()
        self._worker = 0
        self._renew_locks()
        _OPEN.add(self)
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
        self._adopt(anonymous_file("larder-rounds"), os.getpid())
        self._write({})
        self.seek(state["epoch"], state["start"])


_OPEN: weakref.WeakSet[Rounds] = weakref.WeakSet()


def _renew_all() -> None:
    for rounds in list(_OPEN):
        rounds._renew_locks()


os.register_at_fork(after_in_child=_renew_all)

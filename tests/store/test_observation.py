"""Workers send their reads to the worker that keeps the cache. A failed send costs the sender nothing."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.model.access import ObjectRead
from gateway.model.keys import ObjectKey
from gateway.store.files.directory import CacheDirectory
from gateway.store.shared.accesses import MOST, ObservedReads
from gateway.store.shared.observation import ReadChannel, decode_reads, encode_reads
from tests.other_user import NOBODY

KEY = ObjectKey("default", "bucket", "train/ä b\n.jpg")
ALL = 1000


def read(number: int, client: int = 7) -> ObjectRead:
    """A read of a whole object."""
    return ObjectRead(KEY._replace(key=f"train/{number:05}"), 0, 10, 10, True, 1000.5 + number, "AK", client)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Path of the socket."""
    return tmp_path / "reads"


@pytest.fixture
def channel() -> Iterator[Callable[[Path | None], ReadChannel]]:
    """Makes channels, and closes them in the end."""
    with ExitStack() as stack:

        def make(path: Path | None) -> ReadChannel:
            made = ReadChannel(path)
            stack.callback(made.close)
            return made

        yield make


def test_a_read_arrives_as_it_was_noted(place, channel):
    """Rule: key, bytes, time and reader arrive unchanged, for every key."""
    observed, keeper, other = ObservedReads(), channel(place), channel(place)
    observed.note(KEY, 5, 25, 100, False, 12.25, "AK", ("10.0.0.7", 40000), 0.125)
    keeper.open()
    reads, dropped = observed.take_reads()
    assert (other.send(reads), dropped) == (1, 0)
    assert keeper.receive(ALL) == reads
    assert reads[0][:7] == (KEY, 5, 25, 100, False, 12.25, "AK")
    assert reads[0].waited == 0.125
    assert observed.take_reads() == ([], 0)


def test_connections_are_told_apart():
    """Rule: ``client`` differs by reader and by connection, and stays for one connection."""
    observed = ObservedReads()
    for reader, peer in (("A", ("h", 1)), ("A", ("h", 1)), ("A", ("h", 2)), ("B", ("h", 1)), ("B", None)):
        observed.note(KEY, 0, 1, 1, True, 0.0, reader, peer)
    clients = [one.client for one in observed.take_reads()[0]]
    assert clients[0] == clients[1]
    assert len(set(clients)) == 4


def test_a_worker_keeps_a_bounded_number_of_reads():
    """Rule: reads beyond the bound of a hand-over are dropped and counted."""
    observed = ObservedReads()
    for _ in range(MOST + 3):
        observed.note(KEY, 0, 1, 1, True, 0.0, "", None)
    reads, dropped = observed.take_reads()
    assert (len(reads), dropped) == (MOST, 3)


def test_a_receiver_takes_a_bounded_number_at_a_time(place, channel):
    """Rule: one turn of the keeper takes as many datagrams as it needs; the rest waits in the kernel."""
    keeper, other = channel(place), channel(place)
    keeper.open()
    assert other.send([read(number) for number in range(300)]) == 300
    assert len(keeper.receive(100)) == 128
    assert len(keeper.receive(ALL)) == 172
    assert keeper.receive(ALL) == []


def test_a_full_queue_refuses_and_blocks_nobody(place, channel):
    """Rule: a keeper that falls behind costs reads of the statistics, and no worker waits for it."""
    keeper, other = channel(place), channel(place)
    keeper.open()
    reads = [read(number) for number in range(100_000)]
    taken = other.send(reads)
    assert 0 < taken < len(reads)
    assert keeper.receive(len(reads)) == reads[:taken]


def test_without_a_receiver_nothing_is_taken(place, channel):
    """Rule: without a keeper, before its start and after its end, reads are dropped."""
    keeper, other = channel(place), channel(place)
    assert other.send([read(1)]) == 0
    keeper.open()
    keeper.stop_receiving()
    assert other.send([read(1)]) == 0


def test_the_next_keeper_takes_over_after_a_kill(place, channel):
    """Rule: kill -9 of the keeper leaves a socket file that its successor replaces; senders do nothing."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            channel(place).open()
            os.write(tell, b"1")
            signal.pause()
        finally:
            os._exit(1)
    assert os.read(ready, 1) == b"1"
    other, second = channel(place), channel(place)
    assert other.send([read(1)]) == 1
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert place.exists()
    assert other.send([read(2)]) == 0
    second.open()
    assert other.send([read(3)]) == 1
    assert second.receive(ALL) == [read(3)]
    assert [path.name for path in place.parent.iterdir()] == ["reads"]


def test_what_another_version_sends_is_ignored(place, channel):
    """Rule: a datagram that is not a list of reads is ignored without an error."""
    keeper, other = channel(place), channel(place)
    keeper.open()
    for garbage in (b"", b"{", b"[[1]]", b'[["a"]]', b"7"):
        other._sender.sendto(garbage, str(place))
    other.send([read(1)])
    assert keeper.receive(ALL) == [read(1)]


def test_only_the_gateways_user_may_send(place, channel):
    """Rule: the socket has no rights for others."""
    keeper = channel(place)
    keeper.open()
    assert place.stat().st_mode & 0o777 == 0o600


def test_the_socket_is_never_on_the_cache_disk(tmp_path, monkeypatch, channel):
    """Rule: if shared memory is not writable there is no socket, and a worker receives only its own reads."""
    shared = CacheDirectory(tmp_path / "cache").reads
    assert shared is not None
    assert tmp_path not in shared.parents
    monkeypatch.setattr("gateway.store.shared.generations.os.access", lambda *_: False)
    assert CacheDirectory(tmp_path / "cache").reads is None
    alone = channel(None)
    alone.open()
    assert (alone.receives, alone.send([read(1)])) == (False, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": ["default", "bucket", 7]},
        {"start": "0"},
        {"start": -1},
        {"start": True},
        {"start": 11},
        {"stop": 11},
        {"size": 10.0},
        {"hit": 1},
        {"time": "now"},
        {"time": float("nan")},
        {"time": None},
        {"principal": None},
        {"client": 7.5},
        {"client": [1]},
        {"waited": -1.0},
        {"waited": float("inf")},
    ],
    ids=lambda wrong: "-".join(f"{name}-{value}" for name, value in wrong.items()),
)
def test_a_datagram_with_wrong_types_is_dropped(wrong: dict[str, object]) -> None:
    """Rule: a datagram of another program is dropped unless it has a read's types."""
    good = read(1)
    assert decode_reads(encode_reads([good])) == [good]
    assert decode_reads(encode_reads([good, good._replace(**wrong)])) == []


@pytest.mark.parametrize(
    "datagram", [b"", b"null", b"7", b"[7]", b"[[]]", b"[[[1,2]]]", b'{"a":1}', b"\xff", b"[" * 100_000, b'[["abc"]]']
)
def test_a_datagram_that_holds_no_reads_is_dropped(datagram: bytes) -> None:
    """Rule: a datagram without reads is dropped without an error."""
    assert decode_reads(datagram) == []


def test_reads_go_to_no_other_user(place, channel):
    """Rule: a user who binds the name first gets no key and no access key. Needs root."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as spy:
        spy.bind(str(place))
        os.chown(place, NOBODY, NOBODY)
        os.chmod(place, 0o777)
        spy.setblocking(False)
        assert channel(place).send([read(1)]) == 0
        with pytest.raises(BlockingIOError):
            spy.recv(1000)


def test_a_receiver_whose_name_was_removed_takes_it_again(place, channel):
    """Rule: a cleaner of /dev/shm ends the observation of the other workers' reads until the keeper's next turn only."""
    keeper, other = channel(place), channel(place)
    keeper.open()
    place.unlink()
    assert other.send([read(1)]) == 0
    keeper.open()
    assert other.send([read(2)]) == 1
    assert keeper.receive(ALL) == [read(2)]


def test_a_receiver_that_has_its_name_keeps_its_socket(place, channel):
    """Rule: what waits to be received is not lost by another turn."""
    keeper, other = channel(place), channel(place)
    keeper.open()
    other.send([read(1)])
    keeper.open()
    assert keeper.receive(ALL) == [read(1)]


def test_a_name_that_cannot_be_taken_is_told_once(tmp_path, channel, caplog):
    """Rule: the log says why only the keeper's own reads count."""
    place = tmp_path / "reads"
    place.mkdir()
    (place / "file").touch()
    keeper = channel(place)
    for _ in range(3):
        keeper.open()
    assert [str(place) in record.getMessage() for record in caplog.records] == [True]
    assert not keeper.receives

"""Batches of keys over the unix socket: entries come as open files of the cache, judged and loaded as over TCP."""

from __future__ import annotations

import asyncio
import io
import os
import resource
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import larder
from larder.reading import many, passed
from rig.gateways import Running, Settings, gateway, start
from rig.origin import FakeOrigin
from rig.origin_faults import DieAfter
from rig.processes import free_port, wait_until
from rig.v1 import GWA
from rig.world import content
from tests.other_user import OtherUser, Steps, as_another_user, open_folder

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
BLOCK = 256 * 1024
SIZES = (0, 1, 5_000, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 1000)
MEMBERS = {f"{at}.bin": content(3_000 * at, at) for at in range(1, 9)}
KEY = larder.Credentials(*GWA)
NARROW = larder.Credentials("GWN", "narrow-secret")
"""May read "narrow/0" only."""
PASSED = "larder_batch_descriptors_total"
ONCE = larder.Retry(attempts=1)
PATIENT = larder.Retry(attempts=60, base=0.02, longest=0.5)
Results = list[bytes | larder.S3Error]


def settings_of(origin: FakeOrigin, cache: Path, socket: Path, **server: Any) -> Settings:
    """A gateway with small blocks, no blobs in memory, and a socket that other users reach."""
    narrow = {
        "access_key_id": NARROW.access_key_id, "secret_access_key": NARROW.secret_access_key, "tenant": "a",
        "allow": ["many/narrow/0"],
    }  # fmt: skip
    return Settings(
        origin.endpoint, cache, block_size="256KiB", memory="0", server={"unix_socket": str(socket), **server},
        credentials=(*Settings.credentials, narrow), rules=({"match": "many/fresh/**", "freshness": "always"},),
    )  # fmt: skip


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Returns a running gateway."""
    home = tmp_path_factory.mktemp("many-files")
    with open_folder() as folder, gateway(settings_of(origin, home / "cache", folder / "s"), home) as started:
        yield started


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Returns a prefix of the test's own."""
    return request.node.name.replace("[", "-").replace("]", "")


def objects(origin: FakeOrigin, name: str, sizes: Sequence[int] = SIZES) -> tuple[list[str], list[bytes]]:
    """Objects at the origin, as entries, and their bytes."""
    bodies = [content(size, (name, at)) for at, size in enumerate(sizes)]
    for at, body in enumerate(bodies):
        origin.put("many", f"{name}/{at}", body)
    return [f"many/{name}/{at}" for at in range(len(sizes))], bodies


def archive() -> bytes:
    """A TAR archive of ``MEMBERS``."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for member, body in MEMBERS.items():
            header = tarfile.TarInfo(member)
            header.size = len(body)
            tar.addfile(header, io.BytesIO(body))
    return made.getvalue()


def get(running: Running, entries: larder.reading.many.Many, **options: Any) -> Results:
    """The results of a batch by this process, with errors in their places."""
    with_key = {"credentials": KEY, **options}
    return larder.get_many(entries, endpoint=running.endpoint, return_exceptions=True, **with_key)


def through_socket(running: Running, entries: larder.reading.many.Many, **options: Any) -> Results:
    """The same by another user."""
    return as_another_user(lambda: get(running, entries, **options))


def codes(results: Results) -> dict[int, str]:
    """The errors by place."""
    return {at: result.code for at, result in enumerate(results) if isinstance(result, larder.S3Error)}


def open_files() -> int:
    """The number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def files_of(running: Running) -> list[str]:
    """The descriptors of a gateway, without its sockets."""
    links = []
    for link in Path(f"/proc/{running.process.pid}/fd").iterdir():
        try:
            links.append(os.readlink(link))
        except FileNotFoundError:  # closed meanwhile
            continue
    return [link for link in links if "socket:" not in link]


@pytest.mark.parametrize("turn", ["cold", "warm", "hot"])
def test_entries_come_as_files(running: Running, origin: FakeOrigin, turn: str) -> None:
    """Rule: whether it is cached or being loaded, an entry of any size has its bytes, and reads the origin at most once."""
    entries, bodies = objects(origin, "sizes")
    before = running.metric(PASSED), origin.count("GET", "/many/sizes/")
    assert through_socket(running, entries) == bodies
    assert running.metric(PASSED) - before[0] >= (0 if turn == "cold" else len(SIZES) - 1)
    assert (origin.count("GET", "/many/sizes/") > before[1]) is (turn == "cold")


def test_a_file_of_many_entries_is_passed_once(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: ranges, members and repetitions are places in one file, which leaves once for all entries of a batch."""
    origin.put("many", name, archive())
    whole = archive()
    assert len(whole) <= BLOCK
    spans = [(at * 97, at * 97 + 50) for at in range(900)]
    entries = [
        *((("many", name, *span)) for span in spans),
        *(larder.Entry("many", name, member=member) for member in MEMBERS),
        larder.Entry("many", name, start=5, end=9, member="3.bin"),
        *[f"many/{name}"] * 2,
        ("many", name, -7, None),
    ]
    parts = [whole[start:end] for start, end in spans]
    expected = [*parts, *MEMBERS.values(), MEMBERS["3.bin"][5:9], whole, whole, whole[-7:]]
    assert get(running, entries) == expected
    before = running.metric(PASSED)
    assert through_socket(running, entries) == expected
    assert running.metric(PASSED) - before == 1


def test_ranges_over_several_blocks(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: a range begins and ends anywhere in the files of the object's blocks."""
    _, [body] = objects(origin, name, (4 * BLOCK + 77,))
    spans = [(BLOCK - 5, BLOCK + 5), (3, 4 * BLOCK), (-BLOCK - 9, None), (4 * BLOCK, None), (0, 10**9)]
    entries = [("many", f"{name}/0", *span) for span in spans]
    for _ in range(2):
        assert through_socket(running, entries) == [body[start:end] for start, end in spans]


def test_more_files_than_the_client_keeps(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: a client of few descriptors closes files as others come; no entry names one that it has closed."""
    entries, bodies = objects(origin, name, [500 + at for at in range(150)])
    get(running, entries)
    order = [at * 37 % 150 for at in range(450)]
    expected = [bodies[at] for at in order]

    def work(most: int) -> tuple[bool, int]:
        many.acceptable = lambda: most  # type: ignore[attr-defined]
        before = open_files()
        results = get(running, [entries[at] for at in order])
        return results == expected, open_files() - before

    one_connection = 1
    for most in (1, 2, 3, 20, 200):
        before = running.metric(PASSED)
        good, left = as_another_user(lambda most=most: work(most))
        assert good, most
        assert (running.metric(PASSED) > before) is (most > 1)
        assert left <= one_connection


def test_errors_are_those_of_tcp(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: an entry that fails over TCP fails over the socket, with the same code, and does not affect others."""
    entries, bodies = objects(origin, "narrow", (BLOCK, 300))
    wanted = [*entries, "many/narrow/none", "no-such-bucket/k", ("many", "narrow/1", 300, None), "no bucket/k"]
    expected = {2: "NoSuchKey", 3: "NoSuchBucket", 4: "InvalidRange", 5: "InvalidBucketName"}
    for key, refused in ((KEY, expected), (NARROW, dict.fromkeys(range(1, 6), "AccessDenied"))):
        there = get(running, wanted, credentials=key)
        here = through_socket(running, wanted, credentials=key)
        assert codes(here) == codes(there)
        assert codes(here).items() >= {at: refused[at] for at in (refused if key is KEY else (1, 2, 4))}.items()
        assert here[0] == bodies[0]


def test_a_wrong_secret_gets_nothing(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: the socket answers signed requests only; a wrong key is refused, and no file leaves."""
    entries, _ = objects(origin, name)
    get(running, entries)
    before = running.metric(PASSED)

    def work() -> str:
        try:
            get(running, entries, credentials=larder.Credentials(GWA[0], "wrong"))
        except larder.RequestRefused as refused:
            return refused.code
        return "read"

    assert as_another_user(work) == "SignatureDoesNotMatch"
    assert running.metric(PASSED) == before


def test_a_revoked_grant_counts_at_once(running: Running, origin: FakeOrigin) -> None:
    """Rule: once the origin refuses an object to the caller, the next batch has its refusal; the cached file stays here."""
    entries, bodies = objects(origin, "fresh", (BLOCK, 1000))
    for _ in range(2):
        assert through_socket(running, entries) == bodies
    origin.deny("origin-key-a", "many/fresh/0")
    try:
        assert codes(through_socket(running, entries)) == {0: "AccessDenied"}
    finally:
        origin.allow_again()
    assert through_socket(running, entries) == bodies


def test_an_overwrite_between_two_batches(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: the next batch has the new object, after a write through the gateway, and past it where a rule says always."""
    entries = [f"many/{name}", "many/fresh/overwritten"]
    origin.put("many", name, b"1" * BLOCK)
    origin.put("many", "fresh/overwritten", b"1" * BLOCK)

    def work(steps: Steps) -> list[Results]:
        seen = [get(running, entries) for _ in range(2)]
        steps.reached()
        steps.wait()
        return [*seen, get(running, entries)]

    with OtherUser(work) as child:
        child.steps.wait()
        running.client().put_object(Bucket="many", Key=name, Body=b"2" * 999)
        origin.put("many", "fresh/overwritten", b"3" * BLOCK)
        child.steps.reached()
        assert child.result() == [[b"1" * BLOCK] * 2] * 2 + [[b"2" * 999, b"3" * BLOCK]]


def between(steps: Steps) -> None:
    """In the reader's process: pause for the test once, before the first byte is read from a file."""
    read = passed._bytes_at
    paused: list[bool] = []

    def bytes_at(file: int, offset: int, count: int) -> bytes | None:
        if not paused:
            paused.append(True)
            steps.reached()
            steps.wait()
        return read(file, offset, count)

    passed._bytes_at = bytes_at


def blobs(cache: Path, size: int) -> list[Path]:
    """The blobs of a size."""
    return [path for path in (cache / "blobs").rglob("*") if path.is_file() and path.stat().st_size == size]


def test_what_is_deleted_and_evicted_meanwhile(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: the files of an answer keep their bytes, whatever happens to the object and its blobs while they are read."""
    entries, bodies = objects(origin, name, [BLOCK - 40 - at for at in range(40)])
    get(running, entries)
    cache = Path(running.config).parent / "cache"
    before = running.metric(PASSED)

    def work(steps: Steps) -> Results:
        between(steps)
        return get(running, entries)

    with OtherUser(work) as child:
        child.steps.wait()
        wait_until(lambda: running.metric(PASSED) - before == 40, 20, "sending the files")
        for body in bodies:
            for path in blobs(cache, len(body)):
                path.unlink()
        running.client().put_object(Bucket="many", Key=f"{name}/0", Body=b"another")
        child.steps.reached()
        assert child.result() == bodies
    assert through_socket(running, entries) == [b"another", *bodies[1:]]


def test_a_file_that_lost_bytes_is_read_again(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: an entry whose file became shorter is requested again, as bytes; nothing short is given to the caller."""
    entries, bodies = objects(origin, name, (BLOCK - 777, BLOCK - 778))
    get(running, entries)
    cache = Path(running.config).parent / "cache"

    def work(steps: Steps) -> tuple[Results, bool]:
        between(steps)
        reader = larder.ManyReader(running.endpoint, credentials=KEY, retry=PATIENT)
        return reader.get(entries, return_exceptions=True), reader._api.connection.takes_files

    with OtherUser(work) as child:
        child.steps.wait()
        [damaged] = blobs(cache, BLOCK - 777)
        os.truncate(damaged, 100)
        child.steps.reached()
        assert child.result() == (bodies, False)


def test_a_body_that_breaks_off(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: an entry whose bytes end early at the origin is not taken for whole, the others arrive, and the next batch has it."""
    entries, bodies = objects(origin, name, (10, 3 * BLOCK, BLOCK))
    origin.inject(DieAfter(path=f"/many/{name}/1", size=BLOCK + 7, times=1000))

    def work() -> str:
        try:
            results = get(running, entries, retry=ONCE)
        except larder.GatewayUnavailable:
            return "unavailable"
        return "read" if results[1] == bodies[1] else "refused"

    try:
        assert as_another_user(work) in ("unavailable", "refused")
    finally:
        origin.heal()
    assert through_socket(running, entries, retry=PATIENT) == bodies


def test_files_that_do_not_fit_into_the_process(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: if the kernel installs only some files, no entry is read from a wrong one, and the rest comes as bytes."""
    entries, bodies = objects(origin, name, [900 + at for at in range(100)])
    get(running, entries)

    def work() -> tuple[bool, bool, bool]:
        many.acceptable = lambda: 200  # type: ignore[attr-defined]
        reader = larder.ManyReader(running.endpoint, credentials=KEY, retry=PATIENT)
        reader.get(entries[:1])
        before = open_files()
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, before + 20))
        return reader.get(entries) == bodies, reader._api.connection.takes_files, open_files() <= before

    assert as_another_user(work) == (True, False, True)


def test_the_gateways_own_user_gets_bytes(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: users who could write the files get bytes over the socket, and the metric names the reason."""
    entries, bodies = objects(origin, name)
    refused = running.metric("larder_batch_descriptors_refused_total", reason="user")
    before = running.metric(PASSED)
    reader = larder.ManyReader(running.endpoint, credentials=KEY)
    assert reader.get(entries) == bodies
    assert reader._api.connection.local is not None
    assert running.metric("larder_batch_descriptors_refused_total", reason="user") - refused == 1
    assert running.metric(PASSED) == before
    reader.close()


def test_awaited_batches_take_files(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: ``get_many_async`` reads from files too."""
    entries, bodies = objects(origin, name)
    get(running, entries)
    before = running.metric(PASSED)

    def work() -> Any:
        return asyncio.run(larder.get_many_async(entries, endpoint=running.endpoint, credentials=KEY))

    assert as_another_user(work) == bodies
    assert running.metric(PASSED) - before >= len(SIZES) - 1


def test_no_descriptor_is_left_open(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: after 1,000 batches neither side has more files open than before, whether entries failed or the reader left."""
    entries, bodies = objects(origin, name, (700, BLOCK, 2 * BLOCK))
    wanted = [*entries, f"many/{name}/none"]
    as_another_user(lambda: get(running, wanted))
    before = len(files_of(running))

    def work() -> tuple[int, int]:
        reader = larder.ManyReader(running.endpoint, credentials=KEY)
        reader.get(entries)
        first = open_files()
        for _ in range(1000):
            assert reader.get(wanted, return_exceptions=True)[:3] == bodies
        return first, open_files()

    first, last = as_another_user(work)
    assert first == last

    def leave(steps: Steps) -> None:
        between(steps)
        get(running, wanted)

    for _ in range(3):
        with OtherUser(leave) as child:
            child.steps.wait()
    wait_until(lambda: len(files_of(running)) <= before, 20, "closing the files")


def test_a_gateway_that_is_killed_mid_batch(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: kill -9 while a client reads the files of a batch, and a restart: every entry comes, and files again afterwards."""
    entries, bodies = objects(origin, "killed", [BLOCK - at for at in range(300)])
    with open_folder() as folder:
        settings = settings_of(origin, tmp_path / "cache", folder / "s", port=free_port())
        first = start(settings, tmp_path)
        get(first, entries)

        def work(steps: Steps) -> tuple[bool, bool, int]:
            reader = larder.ManyReader(first.endpoint, credentials=KEY, retry=PATIENT)
            between(steps)
            right = [reader.get(entries) == bodies for _ in range(3)]
            reader._api.connection.bytes_until = 0.0
            reader._looked = False
            before = open_files()
            return all(right), reader.get(entries) == bodies, open_files() - before

        with OtherUser(work) as child:
            child.steps.wait()
            first.kill()
            assert first.process.stdout is not None
            first.process.stdout.close()
            child.steps.reached()
            with gateway(settings, tmp_path) as again:
                right, read, left = child.result()
                assert (right, read) == (True, True)
                assert left <= 1
                assert again.metric(PASSED) >= len(entries)

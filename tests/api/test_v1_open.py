"""``larder.open_objects`` before a real gateway: whole objects as open files of its cache, for readers on its machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import larder
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin
from rig.origin_faults import DieAfter
from rig.processes import wait_until
from rig.v1 import GWA, ask
from rig.world import content
from tests.other_user import as_another_user, open_folder

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
BLOCK = 256 * 1024
SIZES = {"several": 5 * BLOCK + 1000, "one": BLOCK, "small": 500, "empty": 0}
KEY = larder.Credentials(*GWA)
NARROW = larder.Credentials("GWN", "narrow-secret")
"""May read "one" only."""


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with a socket that other users reach, and objects of several sizes behind it."""
    for name, size in SIZES.items():
        origin.put("open", name, content(size, name))
    home = tmp_path_factory.mktemp("open")
    narrow = {
        "access_key_id": NARROW.access_key_id,
        "secret_access_key": NARROW.secret_access_key,
        "tenant": "a",
        "allow": ["open/one"],
    }
    with open_folder() as folder:
        settings = Settings(
            origin.endpoint, home / "cache", block_size="256KiB", server={"unix_socket": str(folder / "s")},
            credentials=(*Settings.credentials, narrow),
        )  # fmt: skip
        with gateway(settings, home) as started:
            yield started


def opened(running: Running, work: Callable[[larder.OpenObject], Any], name: str, **options: Any) -> Any:
    """What another user finds at an object that is open."""

    def look() -> Any:
        (entry,) = larder.open_objects([f"open/{name}"], endpoint=running.endpoint, **{"credentials": KEY, **options})
        with entry:
            return work(entry)

    return as_another_user(look)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("turn", ["cold", "warm", "hot"])
def test_an_object_is_open_files(running: Running, name: str, turn: str) -> None:
    """Rule: whether it is cached or being loaded, an object comes as files, with its bytes, size and ETag."""

    def work(entry: larder.OpenObject) -> tuple[Any, ...]:
        return bytes(entry.read()), entry.size, entry.etag, entry.reason

    body = content(SIZES[name], name)
    etag = running.client().head_object(Bucket="open", Key=name)["ETag"]
    assert opened(running, work, name) == (body, len(body), etag, "")


def test_parts_of_an_object_are_read_at_any_place(running: Running) -> None:
    """Rule: a read begins and ends anywhere, within a part or over several, and ends with the object."""
    body = content(SIZES["several"], "several")
    spans = [(0, 10), (BLOCK - 5, 10), (BLOCK, BLOCK), (3, 4 * BLOCK), (len(body) - 7, 100), (len(body), 5)]

    def work(entry: larder.OpenObject) -> list[bytes]:
        return [bytes(entry.read(offset, size)) for offset, size in spans]

    assert opened(running, work, "several") == [body[offset : offset + size] for offset, size in spans]


def test_open_files_outlive_their_eviction(running: Running, origin: FakeOrigin) -> None:
    """Rule: an object stays readable as it was opened, whatever happens to it in the store and in the cache."""
    origin.put("open", "purged", b"a" * BLOCK)

    def work(entry: larder.OpenObject) -> bytes:
        origin.put("open", "purged", b"b" * BLOCK)
        running.client().delete_object(Bucket="open", Key="purged")
        return bytes(entry.read())

    assert opened(running, work, "purged") == b"a" * BLOCK


def test_a_reader_cannot_change_how_the_gateway_reads(running: Running) -> None:
    """Rule: descriptors are for reading, share no position with the gateway's, and cannot be opened again for writing."""

    def work(entry: larder.OpenObject) -> list[Any]:
        seen: list[Any] = []
        for part in entry._parts:
            seen.append(fcntl.fcntl(part.descriptor, fcntl.F_GETFL) & os.O_ACCMODE)
            os.lseek(part.descriptor, 1, os.SEEK_SET)
            try:
                os.close(os.open(f"/proc/self/fd/{part.descriptor}", os.O_WRONLY))
                seen.append("writable")
            except PermissionError:
                seen.append("refused")
        return seen

    assert set(map(str, opened(running, work, "several"))) == {str(os.O_RDONLY), "refused"}
    body = content(SIZES["several"], "several")
    assert running.client().get_object(Bucket="open", Key="several")["Body"].read() == body
    assert opened(running, lambda entry: bytes(entry.read()), "several") == body


def test_whoever_may_write_the_files_reads_by_get(running: Running) -> None:
    """Rule: the gateway's own user gets no files, and the same bytes by GET."""
    (entry,) = larder.open_objects(["open/several"], endpoint=running.endpoint, credentials=KEY)
    with entry:
        assert entry.reason == "user"
        assert bytes(entry.read()) == content(SIZES["several"], "several")
        assert bytes(entry.read(10, 20)) == content(SIZES["several"], "several")[10:30]


def test_a_client_of_few_files_reads_by_get(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: no more files come than the client can take."""
    monkeypatch.setattr("larder.reading.many.acceptable", lambda: 3)
    assert opened(running, lambda entry: (entry.reason, bytes(entry.read())), "several") == (
        "many",
        content(SIZES["several"], "several"),
    )


@pytest.mark.parametrize(("name", "status"), [("none", 404), ("several", 403)])
def test_what_may_not_be_read_is_not_opened(running: Running, name: str, status: int) -> None:
    """Rule: opening is judged as a GET by the same key; the error is S3's."""
    key = KEY if name == "none" else NARROW

    def work() -> int:
        try:
            larder.open_objects([f"open/{name}"], endpoint=running.endpoint, credentials=key)
        except larder.S3Error as error:
            return error.status
        return 200

    assert as_another_user(work) == status


def test_an_object_that_breaks_off_leaves_nothing_open(running: Running, origin: FakeOrigin) -> None:
    """Rule: if the store fails in the middle, the error is that of a GET, and the gateway holds no file of the object."""
    origin.put("open", "broken", content(5 * BLOCK, "broken"))
    origin.inject(DieAfter(path="/open/broken", size=2 * BLOCK + 7, times=1000))

    def work() -> str:
        once = larder.Retry(attempts=1)
        try:
            (entry,) = larder.open_objects(["open/broken"], endpoint=running.endpoint, credentials=KEY, retry=once)
            entry.read()
        except larder.LarderError as error:
            return type(error).__name__
        return "read"

    try:
        assert as_another_user(work) != "read"
    finally:
        origin.heal()
    assert opened(running, lambda entry: bytes(entry.read()), "broken") == content(5 * BLOCK, "broken")
    running.client().delete_object(Bucket="open", Key="broken")
    wait_until(lambda: blobs_deleted_in(running) == [], 60, "the end of open files of blobs that were deleted")


def blobs_deleted_in(running: Running) -> list[str]:
    """Files that were removed and that the gateway still has open, but for those that share memory."""
    folder = Path(f"/proc/{running.process.pid}/fd")
    targets = [os.readlink(path) for path in folder.iterdir() if path.is_symlink()]
    return [target for target in targets if "/blobs/" in target and target.endswith("(deleted)")]


def test_a_request_that_names_no_object_is_refused(running: Running) -> None:
    """Rule: the refusal names the field and the remedy."""
    for body, named in ((b"{}", "bucket"), (b'{"bucket": "b", "key": "k", "start": 1}', "start"), (b"[", "JSON")):
        reply = ask(running, "POST", "/v1/open", body)
        assert reply.status == 400
        assert named in reply.body.decode()
    assert ask(running, "GET", "/v1/open").status == 405
    with pytest.raises(ValueError, match="only whole objects"):
        larder.open_objects([("open", "one", 0, 5)], endpoint=running.endpoint)


def test_a_closed_object_is_not_read(running: Running) -> None:
    """Rule: after ``close`` no descriptor is left, and reading says so."""

    def work(entry: larder.OpenObject) -> tuple[bool, str]:
        number = entry._parts[0].descriptor
        entry.close()
        try:
            entry.read()
        except ValueError as error:
            return os.path.exists(f"/proc/self/fd/{number}"), str(error)
        return True, "read"

    assert opened(running, work, "one") == (False, f"OpenObject('open', 'one', {BLOCK} bytes) is closed")

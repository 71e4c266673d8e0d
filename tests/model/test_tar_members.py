"""Members of TAR archives, found piece by piece, are those that Python's tarfile finds."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.tar import BLOCK, NotTar, TarMembers

NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cc"]), min_size=1, max_size=300
)
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def archive(members: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT, **header: object) -> bytes:
    """An archive of regular files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for name, body in members:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            for field, value in header.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(body))
    return made.getvalue()


def walked(data: bytes, window: int) -> dict[str, bytes]:
    """The members of an archive that is read in windows of so many bytes, or as many as are needed."""
    members = TarMembers(len(data))
    while not members.complete:
        start = members.position
        members.feed(data[start : start + max(window, members.least)])
    return {name: data[first : first + size] for name, (first, size) in members.places.items()}


@pytest.mark.parametrize("form", FORMATS[1:], ids=["gnu", "pax"])
@given(
    members=st.dictionaries(NAMES, st.integers(0, 3000), max_size=8),
    window=st.sampled_from([1, BLOCK, 1000, 5000, 1 << 20]),
)
def test_members_are_those_of_tarfile(form: int, members: dict[str, int], window: int) -> None:
    """Rule: names and bytes are those of tarfile, in either format, however many bytes come at once."""
    bodies = {name: bytes([number % 251]) * size for number, (name, size) in enumerate(members.items())}
    data = archive(list(bodies.items()), form)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = {
            info.name: taken.read() for info in tar if info.isreg() and (taken := tar.extractfile(info)) is not None
        }
    assert walked(data, window) == expected


def test_long_prefixes_of_ustar_are_joined() -> None:
    """Rule: a name that is split into prefix and name is one again."""
    name = "folder/" * 20 + "x" * 90
    assert walked(archive([(name, b"1")], tarfile.USTAR_FORMAT), BLOCK) == {name: b"1"}


def test_the_first_of_one_name_counts() -> None:
    """Rule: of several files with one name the first is given, so that a walk can end there."""
    assert walked(archive([("a", b"first"), ("b", b""), ("a", b"second")]), BLOCK) == {"a": b"first", "b": b""}


def test_other_entries_are_passed_over() -> None:
    """Rule: folders, links and devices are no members, and what follows them is found."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            info = tarfile.TarInfo(f"entry-{kind.decode()}")
            info.type, info.linkname = kind, "elsewhere"
            tar.addfile(info)
        info = tarfile.TarInfo("file")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    assert walked(made.getvalue(), BLOCK) == {"file": b"abc"}


def test_sparse_files_are_left_out() -> None:
    """Rule: a file that is stored sparsely is no range of bytes: it is not given."""
    data = archive([("thin", b"12")], pax_headers={"GNU.sparse.major": "1"}) + b""
    assert walked(data, BLOCK) == {}


@pytest.mark.parametrize("data", [b"x" * 2048, b"\x1f\x8b" + bytes(1022)], ids=["text", "gzip"])
def test_what_is_no_archive_says_so(data: bytes) -> None:
    """Rule: an object that begins otherwise is refused, with a word on compression."""
    with pytest.raises(NotTar, match=r"no TAR header at byte 0 .*compressed"):
        walked(data, BLOCK)


def test_a_truncated_archive_is_refused() -> None:
    """Rule: a file that ends behind the archive's end is not given as if it were whole."""
    with pytest.raises(NotTar, match="truncated"):
        walked(archive([("a", bytes(5000))])[:2048], BLOCK)


@given(data=st.binary(max_size=3 * BLOCK), at=st.integers(0, 2 * BLOCK))
def test_any_bytes_end_the_walk(data: bytes, at: int) -> None:
    """Rule: whatever the bytes, the walk ends: with members, or as no archive."""
    whole = archive([("a", b"1" * 600), ("b" * 200, b"2")])
    damaged = whole[:at] + data + whole[at + len(data) :]
    try:
        walked(damaged, BLOCK)
    except NotTar:
        return

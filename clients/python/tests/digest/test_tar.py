"""Finding and hashing the members of a TAR while it passes by."""

import hashlib
import io
import struct
import tarfile

import pytest

import larder
from larder.base.tar import BLOCK, TarError, sample_members, split_name
from larder.digest.tar import members, samples

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
CONTENTS = {"a.txt": b"alpha", "empty": b"", "d/block": b"x" * BLOCK, "d/long.bin": bytes(range(256)) * 17}


def archive(contents: dict[str, bytes], **options: object) -> bytes:
    """A TAR of regular files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", **options) as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def scan(data: bytes, piece: int = 1 << 20):
    """The members of an archive that arrives in pieces of at most so many bytes."""
    stream = io.BytesIO(data)
    return list(members(lambda most: stream.read(min(most, piece))))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("piece", [1, 511, 513, 1 << 20])
def test_members_are_where_their_offsets_say(form, piece):
    """Offset and length address exactly the member's content, for any split into pieces; the digest is its SHA-256."""
    data = archive(CONTENTS, format=FORMATS[form])
    found = scan(data, piece)
    assert [member.name for member in found] == list(CONTENTS)
    for member in found:
        content = data[member.offset : member.offset + member.length]
        assert content == CONTENTS[member.name]
        assert member.digest == hashlib.sha256(content).digest()


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_long_names_are_read(form):
    """GNU long names and pax paths are the names of their members and not members."""
    name = "directory/" * 30 + "ünïcode-" + "n" * 200
    assert [member.name for member in scan(archive({name: b"1", "b": b"2"}, format=FORMATS[form]))] == [name, "b"]


def test_a_ustar_prefix_belongs_to_the_name():
    """Names of up to 255 bytes are split between two fields of a ustar header."""
    name = "p" * 120 + "/" + "n" * 80
    assert scan(archive({name: b"1"}, format=tarfile.USTAR_FORMAT))[0].name == name


def test_only_regular_files_are_members():
    """Directories, links and devices have no content of their own."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, kind in (
            ("d", tarfile.DIRTYPE),
            ("l", tarfile.SYMTYPE),
            ("h", tarfile.LNKTYPE),
            ("p", tarfile.FIFOTYPE),
        ):
            entry = tarfile.TarInfo(name)
            entry.type = kind
            tar.addfile(entry)
        tar.addfile(tarfile.TarInfo("file"))
    assert [member.name for member in scan(stream.getvalue())] == ["file"]


def test_a_pax_size_overrides_the_header():
    """Sizes beyond the header's field are in the extended header, which counts."""
    record = b"11 size=05\n"
    extended = header(b"x", len(record)) + record.ljust(BLOCK, b"\0")
    data = extended + header(b"0", 0) + b"12345".ljust(BLOCK, b"\0") + bytes(2 * BLOCK)
    assert [(member.offset, member.length) for member in scan(data)] == [(3 * BLOCK, 5)]


def test_a_base_256_size_is_read():
    """GNU tar writes sizes of 8 GiB and more in base 256; a small one is read the same way."""
    data = header(b"0", 0, size=b"\x80" + (7).to_bytes(11, "big")) + b"1234567".ljust(BLOCK, b"\0") + bytes(2 * BLOCK)
    assert [member.length for member in scan(data)] == [7]


def test_a_whole_archive_without_members_is_fine():
    """The end-of-archive marker alone is an archive."""
    assert scan(bytes(2 * BLOCK)) == []


def test_every_cut_is_noticed():
    """However many bytes are missing, up to the end-of-archive marker, the archive is refused and never looks shorter."""
    data = archive({"a": b"1" * 700, "b": b"2"}, format=tarfile.GNU_FORMAT).rstrip(b"\0")
    whole = (len(data) + BLOCK - 1) // BLOCK * BLOCK
    data = data.ljust(whole, b"\0")
    for size in range(whole + BLOCK):
        with pytest.raises(TarError, match="cut off"):
            scan((data + bytes(BLOCK))[:size])
    assert len(scan(data + bytes(BLOCK))) == 2


def test_a_damaged_header_is_refused():
    """A header whose checksum is wrong ends the reading with its position."""
    data = bytearray(archive({"a": b"1", "b": b"2"}))
    data[2 * BLOCK] ^= 1
    with pytest.raises(TarError, match=f"at byte {2 * BLOCK}"):
        scan(bytes(data))


def test_a_second_archive_behind_the_first_is_refused():
    """`cat a.tar b.tar` hides the second archive from every program; here it is an error instead of missing items."""
    with pytest.raises(TarError, match="second archive"):
        scan(archive({"a": b"1"}) + archive({"b": b"2"}))


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_a_compressed_archive_is_named_as_such(compression):
    """Members of a compressed archive have no address, which the error says."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=f"w:{compression}") as tar:
        tar.addfile(tarfile.TarInfo("a" * 90))
        entry = tarfile.TarInfo("noise")
        entry.size = 4096
        tar.addfile(entry, io.BytesIO(hashlib.shake_256(b"").digest(4096)))
    with pytest.raises(TarError, match="compressed with"):
        scan(stream.getvalue())


def test_something_else_is_refused():
    """Bytes that never were a TAR are refused at the first header."""
    with pytest.raises(TarError, match="no TAR header"):
        scan(b"\x89PNG" * 1000)


@pytest.mark.parametrize("kind", [b"S", b"pax"])
def test_sparse_members_are_refused_by_name(kind):
    """The bytes of a sparse member are not its content, so they cannot be an item."""
    record = b"22 GNU.sparse.major=1\n"
    before = header(b"x", len(record)) + record.ljust(BLOCK, b"\0") if kind == b"pax" else b""
    data = before + header(b"0" if kind == b"pax" else b"S", 0, name=b"holes") + bytes(2 * BLOCK)
    with pytest.raises(TarError, match=r"'holes' is stored sparsely"):
        scan(data)


@pytest.mark.parametrize(
    "record", [b"nonsense", b"99 path=a\n", b"9 pathab\n", b"0 a=b\n", b"11 size=-1\n", b"11 path=ab\n\n"]
)
def test_a_damaged_extended_header_is_refused(record):
    """An extended header whose records do not fit their lengths is damage."""
    data = header(b"x", len(record)) + record.ljust(BLOCK, b"\0") + header(b"0", 0) + bytes(2 * BLOCK)
    with pytest.raises(TarError, match="extended header"):
        scan(data)


def test_an_absurd_extended_header_is_not_read():
    """A claim of gigabytes of attributes is refused before anything is held in memory."""
    with pytest.raises(TarError, match="claims"):
        scan(header(b"x", 1 << 31) + bytes(2 * BLOCK))


PAIRS = {
    "d/a.jpg": b"A" * 700,
    "d/a.cls": b"1",
    "d/a.seg.png": b"",
    "d/b.jpg": b"B" * BLOCK,
    "b.jpg": b"other folder",
    "c.JPG": b"upper case",
}
SAMPLES = [("d/a", ["jpg", "cls", "seg.png"]), ("d/b", ["jpg"]), ("b", ["jpg"]), ("c", ["jpg"])]


def scan_samples(data: bytes, piece: int = 1 << 20):
    """The samples of an archive that arrives in pieces of at most so many bytes."""
    stream = io.BytesIO(data)
    return list(samples(lambda most: stream.read(min(most, piece))))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("piece", [1, 511, 513, 1 << 20])
def test_samples_have_their_members(form, piece):
    """Adjacent files with the same name up to the first dot are one item; its bytes are enough to find them, and the digest is
    that of these bytes."""
    contents = {f"{'long' * 30}/{name}": content for name, content in PAIRS.items()}
    data = archive(contents, format=FORMATS[form])
    found = scan_samples(data, piece)
    assert [sample.name for sample in found] == [f"{'long' * 30}/{name}" for name, _ in SAMPLES]
    came = {}
    for sample, (_, names) in zip(found, SAMPLES, strict=True):
        stretch = memoryview(data)[sample.offset : sample.offset + sample.length]
        assert sample.digest == hashlib.sha256(stretch).digest()
        inside = larder.Item(0, stretch).members
        assert list(inside) == names
        came |= {f"{sample.name}.{name}": bytes(content) for name, content in inside.items()}
    assert came == {name.replace("JPG", "jpg"): content for name, content in contents.items()}


def test_what_lies_between_samples_belongs_to_none():
    """Directories and hidden files, as macOS writes them, neither make samples nor part one."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("d/", "d/._a.jpg", "d/a.jpg", "d/._a.cls", "d/a.cls", "d/.hidden", "d/b.jpg"):
            entry = tarfile.TarInfo(name.rstrip("/"))
            content = b"" if name.endswith("/") else name.encode() * 100
            entry.type, entry.size = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE, len(content)
            tar.addfile(entry, io.BytesIO(content))
    data = memoryview(stream.getvalue())
    found = [
        (each.name, sample_members(data[each.offset : each.offset + each.length])) for each in scan_samples(bytes(data))
    ]
    assert [name for name, _ in found] == ["d/a", "d/b"]
    assert found[0][1]["cls"] == b"d/a.cls" * 100
    assert list(found[1][1]) == ["jpg"]


@pytest.mark.parametrize("item", [b"\x89PNG" * 1000, b"short", archive({"a.jpg": b"1" * 700})[:900]])
def test_an_item_that_is_no_sample_says_so(item):
    """Members of a plain item, or of a part of a sample, are an error."""
    with pytest.raises(
        ValueError, match=r"item 0 is no sample \((no TAR header|.*ends inside of 'a.jpg')\): .*--tar-samples"
    ):
        _ = larder.Item(0, memoryview(item)).members


@pytest.mark.parametrize(
    ("name", "parts"), [("a/b.c/d.tar.gz", ("a/b.c/d", "tar.gz")), ("d", ("d", "")), ("x/.y", ("x/", "y"))]
)
def test_names_are_split_at_the_first_dot(name, parts):
    """Names are split like in WebDataset."""
    assert split_name(name) == parts


def header(kind: bytes, length: int, *, name: bytes = b"name", size: bytes | None = None) -> bytes:
    """A ustar header block with a right checksum."""
    size = size or b"%011o\0" % length
    block = bytearray(struct.pack("100s8s8s8s12s12s8s1s355s", name, b"", b"", b"", size, b"", b" " * 8, kind, b""))
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)

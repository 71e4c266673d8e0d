"""Contents of a built digest file, read over real HTTP from a counting origin."""

import base64
import hashlib
import io
import os
import random
import tarfile
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from larder import digest
from larder.base import errors
from rig.origin_faults import ChangedEtag, DieAfter, Gate, Hang, Refuse, WrongContentRange

BODIES = {"a/1": b"one", "a/2": b"", "a/ü 3": bytes(range(256)) * 9000, "b/x": b"x" * 70_000}


def sha256(body: bytes) -> bytes:
    """The digest of bytes."""
    return hashlib.sha256(body).digest()


def fill(store, bodies=BODIES) -> None:
    """Put objects into the bucket."""
    for key, body in bodies.items():
        store.put(key, body)


def test_every_object_is_an_item(store):
    """Each object below the prefix has its digest and length, and the report counts them."""
    fill(store)
    report = store.build()
    assert store.items() == {(key, None, len(body)): sha256(body) for key, body in BODIES.items()}
    assert (report.items, report.objects, report.bytes) == (4, 4, sum(map(len, BODIES.values())))
    assert report.id == digest.read(store.file).id
    assert report.objects_read == 4


def test_rows_are_ordered_by_the_keys_bytes(store):
    """Rows are in the order of UTF-8 bytes, regardless of the order in which the reads finish."""
    names = ["z", "a\uffff", "a\U0001f600", "a/b", "a b", "a%2Fb", "../a", "//", "a+b", "k" * 1024, "n\nl", "ä"]
    fill(store, {name: name.encode() for name in names})
    store.build(jobs=8)
    assert pq.read_table(store.file)["key"].to_pylist() == sorted(names, key=str.encode)
    assert set(store.items().values()) == {sha256(name.encode()) for name in names}


def test_unchanged_input_gives_equal_bytes(store, tmp_path):
    """A repeated build, a fresh build and one with another concurrency give the same file, byte for byte."""
    fill(store)
    store.build(jobs=1)
    first = store.file.read_bytes()
    store.build()
    assert store.file.read_bytes() == first
    store.build(fresh=True, jobs=16)
    assert store.file.read_bytes() == first


def test_only_what_changed_is_read_again(store):
    """A second build reads new and changed objects, and drops deleted ones."""
    fill(store)
    store.build(supplied=False)
    assert set(store.reads()) == set(BODIES) - {"a/2"}
    store.put("a/1", b"changed")
    store.put("new", b"new")
    store.s3.delete("b", "b/x")
    report = store.build(supplied=False)
    assert store.reads() == {"a/1": 1, "new": 1}
    assert (report.unchanged, report.objects_read) == (2, 2)
    assert store.items() == {
        ("a/1", None, 7): sha256(b"changed"),
        ("a/2", None, 0): sha256(b""),
        ("a/ü 3", None, 9000 * 256): sha256(BODIES["a/ü 3"]),
        ("new", None, 3): sha256(b"new"),
    }


def test_an_unchanged_bucket_is_only_listed(store):
    """Building again without any change asks for nothing but the listing."""
    fill(store)
    store.build()
    store.build()
    assert [seen.raw_path for seen in store.s3.seen] == ["/b"]
    assert store.s3.seen[0].header("cache-control") == "no-cache"  # no gateway answers it from a recorded listing


def test_fresh_reads_everything_again(store):
    """`fresh` ignores the existing file."""
    fill(store)
    store.build()
    assert store.build(fresh=True).objects_read == 4


def test_items_of_another_kind_are_not_taken_over(store):
    """Digests of whole objects are not used for the members of TARs, which are read."""
    store.put("t.tar", tar({"a": b"1"}))
    store.build()
    assert store.build(items="tar-members").objects_read == 1
    assert [key[1:] for key in store.items()] == [(512, 1)]


def test_a_checksum_of_the_store_saves_the_read(store):
    """An object whose SHA-256 the store has is not read."""
    bodies = {f"k{number}": b"%d" % number for number in range(40)}
    for key, body in bodies.items():
        store.put(key, body, x_amz_checksum_sha256=base64.b64encode(sha256(body)).decode())
    report = store.build()
    assert store.reads() == {}
    assert report.supplied == 40
    assert set(store.items().values()) == {sha256(body) for body in bodies.values()}


def test_a_checksum_over_parts_is_not_a_digest(store):
    """ "hash-of-hashes-N" is refused and the object read."""
    store.put("k", b"body", x_amz_checksum_sha256=base64.b64encode(sha256(b"other")).decode() + "-2")
    store.build()
    assert store.items() == {("k", None, 4): sha256(b"body")}


def test_checksums_can_be_left_alone(store):
    """With `supplied=False` every object is read, even if the store has its checksum."""
    store.put("k", b"body", x_amz_checksum_sha256=base64.b64encode(sha256(b"lie")).decode())
    store.build(supplied=False)
    assert store.items() == {("k", None, 4): sha256(b"body")}


def test_a_store_without_checksums_is_not_asked_for_ever(store):
    """After some dozens of objects without one, the HEADs stop."""
    fill(store, {f"k{number:03}": b"x" for number in range(200)})
    store.build(jobs=2)
    assert store.s3.count("HEAD") < 50


def test_patterns_choose_the_keys(store):
    """Include takes, exclude takes away; a star crosses slashes."""
    fill(store, dict.fromkeys(("a/x.jpg", "a/b/y.jpg", "a/b/z.png", "c.jpg"), b"1"))
    store.build(include=["a/*.jpg", "*.png"], exclude=["*/b/z*"])
    assert [key for key, *_ in store.items()] == ["a/b/y.jpg", "a/x.jpg"]


def test_markers_of_folders_are_left_out(store):
    """Empty objects whose key ends in a slash mark folders in some tools; they are left out and counted in the report."""
    fill(store, {"a/": b"", "a/1": b"1", "b/": b"with content"})
    assert store.build().folders == 1
    assert [key for key, *_ in store.items()] == ["a/1", "b/"]


def test_nothing_below_the_prefix_is_an_error(store):
    """A misspelt prefix makes no dataset: there is no file."""
    with pytest.raises(digest.BuildIncomplete, match=r"nothing below s3://b/none/ is an item"):
        store.build("s3://b/none/")
    assert not store.file.exists()


def test_a_bucket_that_does_not_exist_is_an_error(store):
    """A listing that fails leaves no file."""
    with pytest.raises(errors.ObjectMissing, match="NoSuchBucket"):
        store.build("s3://elsewhere/")
    assert not store.file.exists()


def test_a_connection_that_breaks_is_resumed_where_it_broke(store):
    """After a break the rest is requested with a range, only if the object is unchanged; no byte is read twice."""
    body = random.Random(1).randbytes(3_000_000)
    store.put("big", body)
    store.s3.inject(DieAfter(method="GET", path="/b/big", size=1_000_000, times=2))
    store.build(supplied=False)
    asked = [seen for seen in store.s3.seen if seen.raw_path == "/b/big"]
    assert len(asked) == 3
    assert all(seen.header("if-match") for seen in asked)
    assert [bool(seen.header("range")) for seen in asked] == [False, True, True]
    assert store.items() == {("big", None, len(body)): sha256(body)}


def test_an_object_that_changes_while_it_is_read_is_read_again(store):
    """Bytes of two versions are never mixed: the read starts over with the new version, which is recorded."""
    old, new = b"o" * 2_000_000, b"n" * 1_500_000
    store.put("k", old)
    store.s3.inject(DieAfter(method="GET", path="/b/k", size=1_000_000))
    gate = Gate()
    store.s3.inject(Hang(method="GET", path="/b/k", gate=gate, after=500_000))
    gate.arrival.add_done_callback(lambda _: (store.put("k", new), gate.open()))
    store.build(supplied=False)
    assert store.items() == {("k", None, len(new)): sha256(new)}
    assert store.build(supplied=False).unchanged == 1


def test_an_object_that_is_overwritten_after_the_listing_is_its_new_self(store):
    """If-Match detects the change; the recorded ETag and size are those of the version that was read."""
    fill(store, {"a": b"1", "b": b"old"})
    gate = Gate()
    store.s3.inject(Hang(method="GET", path="/b/a", gate=gate))
    gate.arrival.add_done_callback(lambda _: (store.put("b", b"newer"), gate.open()))
    store.build(supplied=False, jobs=1)
    assert store.items()[("b", None, 5)] == sha256(b"newer")
    assert store.build(supplied=False).unchanged == 2


def test_an_object_whose_etag_never_holds_is_a_failure(store):
    """A store that answers with another ETag each time is not believed."""
    fill(store, {"k": b"1"})
    store.s3.inject(ChangedEtag(method="GET", path="/b/k", times=99))
    with pytest.raises(digest.BuildIncomplete, match="b/'k'"):
        store.build(supplied=False)


def test_an_object_that_is_deleted_after_the_listing_is_left_out(store):
    """An object deleted after the listing is left out of the file, and the report counts it."""
    fill(store, {"a": b"1", "b": b"2"})
    gate = Gate()
    store.s3.inject(Hang(method="GET", path="/b/a", gate=gate))
    gate.arrival.add_done_callback(lambda _: (store.s3.delete("b", "b"), gate.open()))
    assert store.build(supplied=False, jobs=1).vanished == 1
    assert [key for key, *_ in store.items()] == ["a"]


def test_an_object_that_is_listed_but_not_found_is_a_failure(store):
    """Something on the way that mangles addresses must not make a dataset smaller."""
    fill(store, {"a": b"1", "b": b"2"})
    store.s3.inject(Refuse(method="GET", path="/b/b", times=99, status=404, code="NoSuchKey"))
    with pytest.raises(digest.BuildIncomplete, match=r"b/'b' is listed"):
        store.build(supplied=False)


def test_what_may_not_be_read_fails_the_build_and_keeps_the_rest(store):
    """A refused object fails the build without a file, the error names it, and the next build reads only the missing objects."""
    fill(store)
    store.s3.deny("origin-key-a", "b/b/*")
    with pytest.raises(digest.BuildIncomplete, match=r"b/'b/x': AccessDenied") as caught:
        store.build(supplied=False)
    assert [failure.key for failure in caught.value.failures] == ["b/x"]
    assert not store.file.exists()
    store.s3.allow_again()
    assert store.build(supplied=False).unchanged == 3
    assert store.reads() == {"b/x": 1}


def test_a_failed_build_leaves_the_earlier_file(store):
    """The previous file stays until the new one is complete."""
    fill(store)
    store.build()
    before = store.file.read_bytes()
    store.put("b/x", b"changed")
    store.s3.deny("origin-key-a", "b/b/*")
    with pytest.raises(digest.BuildIncomplete):
        store.build()
    assert store.file.read_bytes() == before


def test_a_store_that_fails_for_a_moment_is_asked_again(store):
    """503 SlowDown passes unnoticed."""
    fill(store)
    store.s3.inject(Refuse(times=2, path="/b/a"))
    assert store.build().items == 4


def test_a_wrong_range_is_not_believed(store):
    """A 206 with another range than the requested one is a failure, and is not hashed."""
    store.put("k", b"x" * 100)
    store.s3.inject(WrongContentRange(times=99, path="/b/k"))
    with pytest.raises(digest.BuildIncomplete, match="wrong or no Content-Range"):
        store.build(items=lambda bucket, key, size, read: [(10, 5)])


def test_an_index_without_a_name_is_refused(store):
    """The name of an index tells its digests from those of others: what has none is refused before anything is read."""
    with pytest.raises(TypeError, match="define a function"):
        store.build(items=partial(list))
    assert not store.reads()


def test_nothing_is_left_beside_the_file(store):
    """After a build there is the digest file and nothing else."""
    fill(store)
    store.build()
    assert os.listdir(store.file.parent) == [store.file.name]


def test_a_file_of_another_kind_is_not_overwritten(store):
    """A file that is not a digest file is not overwritten: it may be the user's work."""
    store.file.write_text("dear diary")
    with pytest.raises(errors.DigestFileError, match="choose another name"):
        store.build()
    assert store.file.read_text() == "dear diary"


def tar(contents: dict[str, bytes]) -> bytes:
    """A TAR of regular files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def test_members_of_tars_are_items(store):
    """Each regular file of each TAR is an item by offset and length; the TAR is read once and whole."""
    shards = {f"{shard}.tar": {f"{n}.bin": random.Random(n).randbytes(n * 700) for n in range(20)} for shard in "ab"}
    fill(store, {key: tar(contents) for key, contents in shards.items()})
    store.build(items="tar-members")
    assert store.reads() == {"a.tar": 1, "b.tar": 1}
    expected = []
    for key, contents in shards.items():
        with tarfile.open(fileobj=io.BytesIO(tar(contents))) as archive:
            expected += [((key, entry.offset_data, entry.size), sha256(contents[entry.name])) for entry in archive]
    assert list(store.items().items()) == expected
    assert pq.read_table(store.file)["member"].to_pylist() == [f"{n}.bin" for n in range(20)] * 2


def test_samples_of_tars_are_items(store):
    """Files of one name are one item; a build of members does not take them for its own, nor the other way round."""
    contents = {f"{n}.{kind}": random.Random(n).randbytes(n * 70) for n in range(20) for kind in ("jpg", "cls")}
    fill(store, {"a.tar": tar(contents)})
    store.build(items="tar-members")
    store.build(items="tar-samples")
    assert store.reads() == {"a.tar": 1}
    assert pq.read_table(store.file)["member"].to_pylist() == [str(n) for n in range(20)]
    whole = memoryview(tar(contents))
    for (_, offset, length), found in store.items().items():
        assert sha256(whole[offset : offset + length]) == found


def test_unchanged_tars_are_not_read_again(store):
    """Members are taken over from the earlier file, byte for byte."""
    fill(store, {"a.tar": tar({"1": b"1", "2": b""}), "b.tar": tar({"3": b"3"})})
    store.build(items="tar-members")
    first = store.file.read_bytes()
    store.build(items="tar-members")
    assert store.reads() == {}
    assert store.file.read_bytes() == first


def test_what_is_no_tar_is_named(store):
    """The error names the object that is not a TAR, and the reason."""
    fill(store, {"a.tar": tar({"1": b"1"}), "readme.txt": b"hello" * 200, "cut.tar": tar({"1": b"1" * 5000})[:3000]})
    with pytest.raises(digest.BuildIncomplete) as caught:
        store.build(items="tar-members")
    assert {failure.key for failure in caught.value.failures} == {"readme.txt", "cut.tar"}
    assert "no TAR header" in str(caught.value)
    assert "cut off" in str(caught.value)


def test_a_function_says_where_items_are(store):
    """A function that returns items' places may read the object; the items are hashed and ordered by offset."""
    body = b"\x03\x05" + b"aaa" + b"bbbbb"

    def records(bucket: str, key: str, size: int, read):
        assert (bucket, key, size) == ("b", "k.rec", len(body))
        lengths = read(0, 2)
        yield 2 + lengths[0], lengths[1]
        yield 2, lengths[0]

    store.put("k.rec", body)
    store.build(items=records)
    assert list(store.items().items()) == [(("k.rec", 2, 3), sha256(b"aaa")), (("k.rec", 5, 5), sha256(b"bbbbb"))]


def test_places_that_repeat_and_begin_together_stay(store):
    """A second build of an unchanged object has the same items in the same order, also those that it has twice."""

    def places(bucket: str, key: str, size: int, read):
        return [(0, length) for length in range(20)] + [(4, 3), (4, 3)]

    store.put("k", bytes(range(30)))
    first = store.build(items=places)
    report = store.build(items=places)
    assert (report.unchanged, report.items, report.id) == (1, 22, first.id)


@pytest.mark.parametrize("given", [[(0, 5)], [(-1, 2)], [(0, -1)], [(3, 2)], [("0", 1)], [(0.5, 1)], [1], None])
def test_places_outside_the_object_are_refused(store, given):
    """A function that returns an invalid place fails the build with the object's name."""
    store.put("k", b"1234")
    with pytest.raises(digest.BuildIncomplete, match=r"b/'k' failed"):
        store.build(items=lambda bucket, key, size, read: given)


def test_a_function_that_raises_is_named(store):
    """Its error is in the build's."""

    def broken(bucket: str, key: str, size: int, read):
        raise KeyError("no such field")

    store.put("k", b"1234")
    with pytest.raises(digest.BuildIncomplete, match=r"broken.*KeyError.*no such field"):
        store.build(items=broken)


def test_a_function_that_does_not_exist_is_refused_at_once(store):
    """An unknown function is refused before anything is listed."""
    with pytest.raises(digest.IndexFailed, match="module:function"):
        store.build(items="larder.nowhere:items")
    assert store.s3.seen == []


@pytest.mark.parametrize("source", ["b/prefix", "s3://", "/local/path", "http://b/p"])
def test_a_source_that_is_no_address_is_refused(store, source):
    """The message shows a right one."""
    with pytest.raises(ValueError, match="s3://bucket/prefix"):
        store.build(source)


PAIRS = {
    f"{folder}/{n}.{kind}": f"{folder}{n}{kind}".encode() for folder in "ab" for n in (1, 2) for kind in ("cls", "jpg")
}


def test_files_beside_each_other_are_samples(store):
    """The members of each sample are adjacent rows, in the order of their names as given; other files are not read."""
    fill(store, {**PAIRS, "a/1.d/1.jpg": b"j", "a/1.d/1.cls": b"c", "README.md": b"no member", "a/x": b"nor this"})
    report = store.build(items="samples:jpg,cls")
    table = pq.read_table(store.file)
    stems = ["a/1", "a/1.d/1", "a/2", "b/1", "b/2"]
    assert table["key"].to_pylist() == [f"{stem}.{kind}" for stem in stems for kind in ("jpg", "cls")]
    assert table["member"].to_pylist() == ["jpg", "cls"] * 5
    assert table.schema.metadata[b"larder.members"] == b"jpg,cls"
    assert (report.samples, report.items, report.objects, report.incomplete) == (5, 10, 10, 0)
    assert not store.reads().keys() & {"README.md", "a/x"}
    assert report.id == digest.read(store.file).id


def test_a_sample_that_lacks_a_member(store):
    """The build names it and writes nothing; told to skip such samples it counts them, and reads nothing again."""
    fill(store, {name: body for name, body in PAIRS.items() if name not in ("a/2.cls", "b/1.jpg")})
    with pytest.raises(
        digest.BuildIncomplete, match=r"2 samples lack members(?s:.*)a/2 lacks cls\n  b/1 lacks jpg"
    ) as told:
        store.build(items="samples:jpg,cls")
    assert [failure.key for failure in told.value.failures] == ["a/2", "b/1"]
    assert not store.file.exists()
    report = store.build(items="samples:jpg,cls", skip_incomplete=True)
    assert (report.samples, report.incomplete, report.unchanged) == (2, 2, 6)
    assert [key for key, *_ in store.items()] == ["a/1.jpg", "a/1.cls", "b/2.jpg", "b/2.cls"]
    assert not store.reads()


@pytest.mark.parametrize("members", ["", "jpg", "jpg,", "jpg,jpg", "a/b,jpg", "x" * 81 + ",jpg"])
def test_names_that_are_no_members(store, members):
    """A sample has at least two members, each named once and without a path."""
    with pytest.raises(ValueError, match="sample"):
        store.build(items=f"samples:{members}")


def parquet(rows, per_group, **options):
    """A Parquet file of so many rows."""
    stream = io.BytesIO()
    table = pa.table({"number": range(rows), "text": [f"row {number}" for number in range(rows)]})
    pq.write_table(table, stream, row_group_size=per_group, **options)
    return stream.getvalue()


def test_row_groups_are_items_beside_their_footer(store):
    """Each row group is a range of its file, and with the footer a sample; a second build reads only files without rows."""
    bodies = {"a": parquet(25, 10), "b": parquet(3, 10, compression="none"), "none": parquet(0, 10)}
    fill(store, bodies)
    report = store.build(items="row-groups")
    assert (report.samples, report.items, report.objects) == (4, 8, 3)
    file = digest.read(store.file)
    places = [file.location(index) for index in range(8)]
    assert [place.key for place in places] == ["a"] * 6 + ["b"] * 2
    for number, place in enumerate(places):
        part = bodies[place.key][place.offset :][: place.length]
        assert file.digest(number) == sha256(part)
        assert part.endswith(b"PAR1") == bool(number % 2)
    assert len({place.offset for place in places[:6:2]}) == 3
    first = store.file.read_bytes()
    report = store.build(items="row-groups")
    assert (report.unchanged, set(store.reads()), store.file.read_bytes() == first) == (2, {"none"}, True)


@pytest.mark.parametrize("body", [b"", b"PAR1", b"x" * 100, parquet(9, 9)[-60:]])
def test_an_object_that_is_not_parquet(store, body):
    """The build names it, and writes nothing."""
    fill(store, {"a": body})
    with pytest.raises(digest.BuildIncomplete, match="row-groups of b/'a' failed"):
        store.build(items="row-groups")

"""The samples of TARs as people have them: those that WebDataset makes of the same archive."""

import io
import tarfile

import pytest
from webdataset.tariterators import group_by_keys, tar_file_expander

from larder.base.tar import TarError, sample_members
from larder.digest.tar import samples

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
REFUSED = "refused"
LONG = "directory/" * 15 + "ünïcode-" + "n" * 150
CASES = {
    "plain": (["01.jpg", "01.cls", "02.jpg", "02.cls"], [("01", "cls jpg"), ("02", "cls jpg")]),
    "AppleDouble": (["./._01.cls", "./01.cls", "./._01.jpg", "./01.jpg"], [("./01", "cls jpg")]),
    "no extension": (["README", "01.jpg", "LICENSE", "01.cls", "Makefile"], [("01", "cls jpg")]),
    "upper case": (["01.JPG", "01.Seg.PNG", "02.jpg"], [("01", "jpg seg.png"), ("02", "jpg")]),
    "dots in folders": (
        ["v1.0/01.seg.png", "v1.0/01.jpg", "v1.1/01.jpg"],
        [("v1.0/01", "jpg seg.png"), ("v1.1/01", "jpg")],
    ),
    "many dots": (["01.a.b.c", "01..d", "01."], [("01", " .d a.b.c")]),
    "no extension in a folder": (["a.b/c", "a.b/01.jpg"], [("a.b/01", "jpg")]),
    "hidden at the top": ([".hidden", ".01.jpg", "01.jpg"], [("01", "jpg")]),
    "hidden folder": ([".cache/01.jpg"], [(".cache/01", "jpg")]),
    "own files": (["__meta__", "__shard__/info.json", "01.jpg", "__a.b__", "01.cls"], [("01", "cls jpg")]),
    "looks like an own file": (["__key__.txt"], [("__key__", "txt")]),
    "not adjacent": (["01.jpg", "02.jpg", "01.cls"], [("01", "jpg"), ("02", "jpg"), ("01", "cls")]),
    "case of the stem": (["a.jpg", "A.cls"], [("a", "jpg"), ("A", "cls")]),
    "long names": ([f"{LONG}.jpg", f"{LONG}.cls"], [(LONG, "cls jpg")]),
    "nothing": (["README"], []),
    "twice": (["01.jpg", "01.jpg", "01.cls"], REFUSED),
    "twice in another case": (["01.jpg", "01.JPG"], REFUSED),
    "a field of WebDataset": (["01.jpg", "01.__key__"], REFUSED),
    "another field": (["01.__URL__"], REFUSED),
}
"""By case: the files of an archive, and its samples with the names of their members."""


def archive(names, form, kinds=()):
    """A TAR whose files have their own names as content; ``kinds``: entries that are no regular files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=FORMATS[form]) as tar:
        for name, kind in kinds:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "01.jpg"
            tar.addfile(entry)
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(name.encode())
            tar.addfile(entry, io.BytesIO(name.encode()))
    return stream.getvalue()


def samples_of(data):
    """The samples that the digest file would have, with the members that a transform would get."""
    stream = io.BytesIO(data)
    try:
        found = list(samples(stream.read))
        members = [sample_members(memoryview(data)[each.offset : each.offset + each.length]) for each in found]
    except TarError:
        return REFUSED
    for each, parts in zip(found, members, strict=True):
        for name, content in parts.items():
            assert bytes(content).decode().lower() == f"{each.name}.{name}".lower()
    return [(each.name, " ".join(sorted(parts))) for each, parts in zip(found, members, strict=True)]


def samples_of_webdataset(data):
    """The same by the webdataset package."""
    try:
        found = list(group_by_keys(tar_file_expander([{"url": "shard.tar", "stream": io.BytesIO(data)}])))
    except ValueError:
        return REFUSED
    own = ("__key__", "__url__", "__local_path__")
    return [(each["__key__"], " ".join(sorted(name for name in each if name not in own))) for each in found]


@pytest.mark.parametrize("form", ["gnu", "pax"])
@pytest.mark.parametrize("case", CASES)
def test_samples_are_those_of_webdataset(case, form):
    """Samples and their members are the ones of the table, which are WebDataset's."""
    names, expected = CASES[case]
    data = archive(names, form)
    assert samples_of(data) == expected
    assert samples_of_webdataset(data) == expected


@pytest.mark.parametrize("form", FORMATS)
def test_other_entries_belong_to_no_sample(form):
    """Directories, links and devices make no sample, also if their names are those of members."""
    kinds = [
        ("a", tarfile.DIRTYPE),
        ("01.cls", tarfile.SYMTYPE),
        ("01.txt", tarfile.LNKTYPE),
        ("01.dev", tarfile.CHRTYPE),
    ]
    assert samples_of(archive(["01.jpg"], form, kinds)) == [("01", "jpg")]


def test_hidden_files_part_no_sample():
    """A hidden file in a folder is left out and does not divide the sample, where WebDataset makes a sample of it."""
    assert samples_of(archive(["a/01.jpg", "a/.DS_Store", "a/01.cls"], "pax")) == [("a/01", "cls jpg")]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a/01.jpg", "a/01.JPG"], r"file 'a/01.JPG': member 'jpg' of its sample comes twice.*rename the file"),
        (["01.__key__"], r"file '01.__key__': member '__key__' of its sample is a field of WebDataset"),
    ],
)
def test_a_refused_member_is_named(names, message):
    """The message has the file, the member and the remedy."""
    with pytest.raises(TarError, match=message):
        list(samples(io.BytesIO(archive(names, "pax")).read))

"""``larder digest``: build and inspect digest files."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from larder.base.sizes import format_size
from larder.commands import output
from larder.digest.building import build as build_digest_file
from larder.digest.building import partial
from larder.digest.comparing import Comparison, differences
from larder.digest.file import read
from larder.digest.items import OBJECTS, ROW_GROUPS, SAMPLES, TAR_MEMBERS, TAR_SAMPLES
from larder.digest.progress import Counts, Silent, Written
from larder.digest.summary import summarize
from larder.digest.verifying import sample
from larder.digest.verifying import verify as verify_items
from larder.http.credentials import CredentialSource, endpoint_of
from larder.http.s3 import S3


def build(arguments: Namespace) -> int:
    """``larder digest build``."""
    try:
        report = build_digest_file(
            arguments.source,
            arguments.output,
            endpoint=_endpoint(arguments),
            credentials=CredentialSource(profile=arguments.profile),
            items=_items(arguments),
            include=arguments.include,
            exclude=arguments.exclude,
            jobs=arguments.jobs,
            fresh=arguments.fresh,
            supplied=not arguments.no_store_checksums,
            progress=not arguments.no_progress,
            skip_incomplete=arguments.skip_incomplete,
            request_payer=arguments.request_payer,
        )
    except KeyboardInterrupt:
        journal = partial(Path(arguments.output))
        if journal.exists():
            output.note(f"what was read is kept in {journal}: the same command goes on from there")
        raise
    if arguments.json:
        output.document(asdict(report))
        return 0
    what = f"{report.items:,} items"
    if report.samples:
        what = f"{report.samples:,} samples of {report.items // report.samples} items each"
    output.line(f"{report.file}: {what} in {report.objects:,} objects of {format_size(report.bytes)}")
    output.line(f"dataset id {report.id}")
    done = [
        f"read {report.objects_read:,} objects ({format_size(report.bytes_read)})",
        f"{report.unchanged:,} unchanged",
    ]
    counted = {
        "with a checksum of the store's": report.supplied,
        "deleted during the build": report.vanished,
        "markers of folders left out": report.folders,
        "samples without all members left out": report.incomplete,
    }
    output.line(", ".join(done + [f"{count:,} {what}" for what, count in counted.items() if count]))
    return 0


def _items(arguments: Namespace) -> str:
    if arguments.row_groups:
        return ROW_GROUPS
    if arguments.samples:
        return SAMPLES + str(arguments.samples)
    if arguments.tar_members or arguments.tar_samples:
        return TAR_MEMBERS if arguments.tar_members else TAR_SAMPLES
    return arguments.index or OBJECTS


def show(arguments: Namespace) -> int:
    """``larder digest show``."""
    file = read(arguments.file)
    if arguments.digests:
        for index in range(len(file)):
            location, digest = file.location(index), file.digest(index).hex()
            if arguments.json:
                output.document({"index": index, **location._asdict(), "digest": digest})
            else:
                output.line(f"{digest}  {output.place(*location)}")
        return 0
    summary = summarize(file)
    if arguments.json:
        sizes = [{"below": upper, "items": count} for upper, count in summary.sizes]
        output.document({**asdict(summary), "sizes": sizes})
        return 0
    duplicates = f"{summary.duplicates:,} ({format_size(summary.duplicate_bytes)})"
    members = (
        []
        if not summary.members
        else [
            ("samples", f"{summary.items // len(summary.members):,}"),
            ("members of a sample", ", ".join(map(output.printable, summary.members))),
        ]
    )
    facts = [
        ("dataset id", summary.id),
        ("items", f"{summary.items:,}"),
        *members,
        ("bytes", f"{summary.bytes:,} ({format_size(summary.bytes)})"),
        ("parts of objects", f"{summary.parts:,}"),
        ("of unknown length", f"{summary.unknown_lengths:,}"),
        ("duplicates", duplicates),
    ]
    output.table(facts)
    if summary.items:
        output.line("items by bucket")
        output.table([(count, bucket) for bucket, count in summary.buckets.items()], "  ")
        output.line("items by size")
        output.table(_bars(summary.sizes), "  ")
    return 0


def _bars(sizes: list[tuple[int, int]]) -> list[tuple[str, int, str]]:
    most = max((count for _, count in sizes), default=1)
    return [
        ("empty" if upper == 1 else f"< {format_size(upper)}", count, "#" * round(40 * count / most))
        for upper, count in sizes
    ]


def verify(arguments: Namespace) -> int:
    """``larder digest verify``."""
    file = read(arguments.file)
    indices = range(len(file)) if arguments.all else sample(len(file), arguments.sample, arguments.seed)
    s3 = S3(_endpoint(arguments), credentials=CredentialSource(profile=arguments.profile))
    counts = Counts(unit="items")
    progress = Silent() if arguments.no_progress else Written(sys.stderr)
    by_status: Counter[str] = Counter()
    try:
        for finding in verify_items(file, s3, indices, jobs=arguments.jobs, counts=counts, progress=progress):
            by_status[finding.status] += 1
            if arguments.json:
                location = finding.location._asdict()
                output.document(
                    {"index": finding.index, **location, "status": finding.status, "detail": finding.detail}
                )
            else:
                where = output.place(*finding.location)
                output.line(f"{finding.status:<11}  item {finding.index}  {where}  {output.printable(finding.detail)}")
    finally:
        s3.close()
    if arguments.json:
        output.document({"checked": len(indices), "items": len(file), "wrong": by_status.total(), **by_status})
    else:
        many = f"{len(indices):,} of {len(file):,} items checked"
        output.line(
            f"{many}: {', '.join(f'{count:,} {status}' for status, count in by_status.items()) or 'all as they should be'}"
        )
    return 1 if by_status else 0


def diff(arguments: Namespace) -> int:
    """``larder digest diff``."""
    first, second = read(arguments.first), read(arguments.second)
    comparison = Comparison()
    signs = {"added": "+", "removed": "-", "changed": "~"}
    for difference in differences(first, second, comparison):
        if arguments.json:
            output.document(difference._asdict())
        else:
            output.line(
                f"{signs[difference.kind]} {output.place(difference.bucket, difference.key, difference.offset)}"
            )
    summary = {"same": comparison.same, **comparison.counts}
    if arguments.json:
        output.document({**summary, "reordered": comparison.reordered, "equal": comparison.equal})
    elif comparison.reordered:
        output.line(f"the same {comparison.same:,} items in another order, which is another dataset")
    else:
        output.line(", ".join(f"{count:,} {kind}" for kind, count in summary.items()))
    return 0 if comparison.equal else 1


def _endpoint(arguments: Namespace) -> str | None:
    """The address that was given or set; ``None`` for AWS itself."""
    try:
        return endpoint_of(arguments.endpoint, profile=arguments.profile)
    except ValueError:
        return None

"""``larder-gateway traffic``: who reads, and what misses the cache."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.common.grammar import asking, describe
from gateway.commands.common.output import Column, age, heading, line, number, share, size, speed, table
from gateway.commands.common.resources import answering


def _per_second(row: Mapping[str, Any]) -> str:
    return f"{number(row.get('requests_per_second'), 1)}/s"


def _prefix(row: Mapping[str, Any]) -> str:
    return f"{row.get('bucket')}/{row.get('prefix')}"


BUCKETS = (
    Column("bucket"),
    Column("tenant"),
    Column("requests", _per_second, number=True),
    Column("sent", "sent_bytes_per_second", speed),
    Column("hits", "hit_ratio", share),
)
PREFIXES = (
    Column("prefix", _prefix),
    Column("reason"),
    Column("reads", "requests", number),
    Column("sent", "bytes", size),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        answering(lambda admin, _: admin.get("traffic"), _show),
        "S3 requests and batches of the last minute by tenant and bucket or dataset, the busiest first; and by prefix the reads\n"
        "of the last minutes that were not plain hits, with the reason. --json adds what each reason means, and what makes it\n"
        "rarer.",
        "larder-gateway traffic",
        "larder-gateway traffic --json | jq '.misses[0]'",
    )
    asking(command)


def _show(_options: Namespace, answer: Mapping[str, Any]) -> None:
    heading("traffic, last minute")
    table(BUCKETS, answer.get("buckets", []), "no requests")
    line()
    heading(f"missed prefixes, last {age(answer.get('miss_seconds')) or 'minutes'}")
    table(PREFIXES, answer.get("misses", []), "no misses")

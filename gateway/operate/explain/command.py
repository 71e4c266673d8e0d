"""``larder-gateway explain``: one read, or the misses of the fleet."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.common.connection import Admin
from gateway.commands.common.grammar import asking, describe, place
from gateway.commands.common.output import Column, age, facts, moment, number, saves, size, table
from gateway.commands.common.resources import answering
from gateway.model.errors import ConfigError

_MISSES = (
    Column("node"),
    Column("outcome"),
    Column("reason"),
    Column("count", shown=number),
    Column("meaning"),
    Column("to change", "change"),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        answering(_explain, _tell),
        "Show whether the next plain GET of an object by an access key would be a hit, why, and how to make it one. The\n"
        "store is not asked, and nothing is fetched. Without an object: the answers other than plain hits, by reason.",
        "larder-gateway explain datasets/imagenet/train/0001.jpg --as GWVISION",
        "larder-gateway explain",
        "larder-gateway explain --node node-2",
    )
    command.add_argument("place", metavar="BUCKET/KEY", nargs="?", type=place, help="the object")
    command.add_argument("--as", metavar="ACCESS_KEY", dest="key", help="the reader (the only valid key)")
    command.add_argument("--node", metavar="NODE", help="without an object: only of this node")
    asking(command)


def _explain(admin: Admin, options: Namespace) -> Any:
    if options.place is None:
        if options.key is not None:
            raise ConfigError("BUCKET/KEY: --as requires an object")
        return admin.get("explain/misses", node=options.node)
    if options.node is not None:
        raise ConfigError("--node: an object is always explained by its home")
    bucket, key = options.place
    if not key:
        raise ConfigError("BUCKET/KEY: name an object")
    options.key = options.key or _only_key(admin)
    return admin.get("explain", bucket=bucket, key=key, access_key_id=options.key)


def _tell(options: Namespace, answer: Mapping[str, Any]) -> None:
    if options.place is None:
        table(_MISSES, answer["items"], "every answer was a plain hit")
        return
    facts(
        (
            ("object", "/".join(options.place)),
            ("read by", f"{options.key}, tenant {answer.get('tenant')}"),
            ("next read", " ".join(filter(None, (str(answer.get("outcome")), answer.get("reason"))))),
            ("why", answer.get("explanation")),
            ("to change", answer.get("change") or None),
            ("rule", _rule(answer.get("rule") or {})),
            ("home", _home(answer)),
            ("stream", " ".join(filter(None, (answer.get("stream"), answer.get("pattern")))) or "none"),
            ("pool", answer.get("pool")),
            ("saves", saves(answer.get("saves"))),
            *((f"dataset {part['dataset']}", _items(part)) for part in answer.get("items", ())),
            *_held(answer),
        )
    )


def _items(items: Mapping[str, Any]) -> str:
    return f"{number(items['resident'])} of {number(items['items'])} items in it are cached, for loaders"


def _rule(rule: Mapping[str, Any]) -> str:
    kept = rule.get("freshness")
    fresh = age(kept) if isinstance(kept, int | float) else kept
    grants = "for all matching objects" if rule.get("by_prefix") else "for one object"
    cached = "" if rule.get("cache") else ", not cached"
    return f"{rule.get('match')}: freshness {fresh}, grant {age(rule.get('grant_seconds'))} {grants}{cached}"


def _home(answer: Mapping[str, Any]) -> str:
    if answer.get("unreachable"):
        return f"{answer.get('home')}, which is unreachable ({answer['unreachable']}); {answer.get('asked')} answered"
    return f"{answer.get('home')}{'' if answer.get('channel') else ', which receives no invalidations now'}"


def _held(answer: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    if not answer.get("known"):
        return (("in the cache", "no"),)
    blocks = f"{number(answer.get('resident_blocks'))} of {number(answer.get('blocks'))} blocks"
    return (
        ("in the cache", f"{blocks} of {size(answer.get('size'))}, ETag {answer.get('etag')}"),
        ("parts", _parts(answer)),
        ("confirmed", moment(answer.get("confirmed_at"))),
        ("fresh until", moment(answer.get("fresh_until"))),
        ("granted until", moment(answer.get("granted_until"))),
    )


def _parts(answer: Mapping[str, Any]) -> str | None:
    """The ranges that are stored as they were read; ``None`` if there are none."""
    if not (count := answer.get("parts")):
        return None
    spans = [f"{part['start']}-{part['start'] + part['bytes'] - 1}" for part in answer["first_parts"]]
    more = ", ..." if count > len(spans) else ""
    return (
        f"{number(count)} of {size(answer.get('part_bytes'))}, stored as they were read: bytes {', '.join(spans)}{more}"
    )


def _only_key(admin: Admin) -> str:
    """The only access key in force.

    Raises:
        ConfigError: there are several or none.
    """
    known = [key for key in admin.listed("credentials") if not key.get("revoked") and not key.get("problem")]
    if len(known) != 1:
        raise ConfigError(f"--as: give the reader's access key; {len(known)} are in force")
    return str(known[0]["access_key_id"])

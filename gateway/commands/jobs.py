"""``larder-gateway jobs``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.commands.connection import Admin, connected, path
from gateway.commands.grammar import pages, subcommand, subcommands
from gateway.commands.output import Column, age, document, hint, line, number, printable, table
from gateway.model.errors import ConfigError, LarderError

_COLUMNS = (
    Column("job"),
    Column("dataset"),
    Column("gpus", number=True),
    Column("ranks", number=True),
    Column("epoch", number=True),
    Column("phase"),
    Column("cache"),
    Column("t miss", number=True),
    Column("t hit", number=True),
    Column("benefit", number=True),
    Column("silent", number=True),
)


def add(command: ArgumentParser) -> None:
    """Say what the command takes."""
    commands = subcommands(
        command,
        "Training jobs that are heard of: the mean time of a step without the cache (t miss) and with it (t hit), and the\n"
        "quotient of both, the benefit. docs/jobs.md explains phases.",
        "larder-gateway jobs list",
        "larder-gateway jobs remove vision/resnet50-17",
    )
    known = subcommand(commands, "list", "list the jobs", _list, "larder-gateway jobs list --json")
    pages(known, 0)
    removed = subcommand(
        commands,
        "remove",
        "forget a job that has ended without a word; one that lives registers again",
        _remove,
        "larder-gateway jobs remove vision/resnet50-17",
        "larder-gateway jobs remove resnet50-17",
    )
    removed.add_argument("job", metavar="[TENANT/]JOB", help="without a tenant: if only one has a job of this name")


def show(jobs: Iterable[Mapping[str, Any]]) -> None:
    """A table of jobs."""
    table(_COLUMNS, map(_row, jobs), "no jobs")


def _row(job: Mapping[str, Any]) -> tuple[object, ...]:
    epoch, benefit = job.get("epoch"), number(job.get("benefit") or None, 2)
    return (
        f"{job.get('tenant')}/{job.get('job')}",
        job.get("dataset_name") or job.get("dataset"),
        job.get("gpus"),
        job.get("ranks"),
        None if epoch == -1 else epoch,
        job.get("phase"),
        "yes" if job.get("cache") else "no",
        _step(job.get("t_miss")),
        _step(job.get("t_hit")),
        None if benefit is None else f"{benefit}x",
        age(job.get("silent_seconds")),
    )


def _step(seconds: object) -> str | None:
    mean = number(seconds or None, 3)
    return None if mean is None else f"{mean} s"


def _list(options: Namespace) -> int:
    with connected(options) as admin:
        jobs = list(admin.listed("jobs", options.limit))
    if options.json:
        document({"items": jobs})
    else:
        show(jobs)
    return 0


def _remove(options: Namespace) -> int:
    tenant, slash, job = options.job.rpartition("/")
    if not job:
        raise ConfigError(f"JOB: {options.job!r} must look like vision/resnet50-17, or resnet50-17")
    with connected(options) as admin:
        owner = tenant if slash else _owner(admin, job)
        admin.ask("DELETE", path("jobs", owner, job))
    if options.json:
        document({"removed": f"{owner}/{job}"})
    else:
        line(f"{printable(f'{owner}/{job}')} is forgotten")
    return 0


def _owner(admin: Admin, job: str) -> str:
    """The tenant that has a job of this name.

    Raises:
        LarderError: there is none, or more than one.
    """
    owners = sorted({str(each.get("tenant")) for each in admin.listed("jobs") if each.get("job") == job})
    if not owners:
        raise LarderError(f"there is no job {job!r}; {hint('jobs', 'list')} has those that there are")
    if len(owners) > 1:
        named = ", ".join(hint("jobs", "remove", f"{owner}/{job}") for owner in owners)
        raise LarderError(f"several tenants have a job {job!r}: {named}")
    return owners[0]

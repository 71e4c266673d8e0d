"""``larder-gateway jobs``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.commands.common.connection import Admin, path
from gateway.commands.common.grammar import subcommand, subcommands
from gateway.commands.common.output import MISSING, Column, age, facts, hint, line, named, number, printable
from gateway.commands.common.resources import add_list, answering, listing
from gateway.model.errors import ConfigError, LarderError


def step(seconds: object) -> str | None:
    """The time of a mini-batch; ``None`` if it is not known."""
    mean = number(seconds or None, 3)
    return None if mean is None else f"{mean} s"


def times(benefit: object) -> str | None:
    """A benefit as a factor; ``None`` if it was not measured."""
    return f"{number(benefit, 2)}x" if benefit else None


COLUMNS = (
    Column("job", lambda job: f"{job.get('tenant')}/{job.get('job')}"),
    Column("dataset", lambda job: job.get("dataset_name") or job.get("dataset")),
    Column("gpus", number=True),
    Column("ranks", number=True),
    Column("epoch", lambda job: None if job.get("epoch") == -1 else job.get("epoch"), number=True),
    Column("phase"),
    Column("cache", lambda job: "yes" if job.get("cache") else "no"),
    Column("t miss", shown=step, number=True),
    Column("t hit", shown=step, number=True),
    Column("predicted", "t_predicted", step, number=True),
    Column("with more", "t_with_more", step, number=True),
    Column("benefit", shown=times, number=True),
    Column("silent", "silent_seconds", age),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    commands = subcommands(
        command,
        "Training jobs: the time of a step without hits (t miss), with the hits that it has (t hit), as predicted from the\n"
        "space of its dataset, and with a tenth of the dataset more. The benefit is t miss by the time with hits only.\n"
        "docs/jobs.md explains phases.",
        "larder-gateway jobs list",
        "larder-gateway jobs show vision/resnet50-17",
        "larder-gateway jobs remove vision/resnet50-17",
    )
    add_list(commands, "jobs", "list the jobs", listing("jobs", COLUMNS))
    shown = subcommand(
        commands,
        "show",
        "show all that is known of a job",
        answering(_shown, lambda _, job: facts(_facts(job))),
        "larder-gateway jobs show vision/resnet50-17",
    )
    _add_job(shown)
    removed = subcommand(
        commands,
        "remove",
        "forget a job that ended without unregistering; a running job registers again",
        answering(_remove, lambda _, answer: line(f"{printable(answer['removed'])} is forgotten")),
        "larder-gateway jobs remove vision/resnet50-17",
        "larder-gateway jobs remove resnet50-17",
    )
    _add_job(removed)


def _add_job(command: ArgumentParser) -> None:
    command.add_argument("job", metavar="[TENANT/]JOB", help="the tenant is optional if only one has such a job")


def _shown(admin: Admin, options: Namespace) -> dict[str, Any]:
    owner, job = _named(admin, options.job, "show")
    jobs = (row for row in admin.listed("jobs") if (row.get("tenant"), row.get("job")) == (owner, job))
    if (row := next(jobs, None)) is None:
        raise LarderError(f"unknown job {options.job!r}; see {hint('jobs', 'list')}")
    return row


def _facts(job: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The facts shown about one job: the columns of the list, and facts that have no room there."""
    for column in COLUMNS:
        cell = column.cell(job)
        yield column.name, None if cell == MISSING else cell
    if (waited := job.get("gpu_seconds_waited")) is not None:
        yield "GPUs waited", f"{number(waited)} s"
    if isinstance(last := job.get("last_epoch"), dict):
        least = last.get("least")
        bound = (
            "" if least is None else f"; {number(least, 2)} is the least possible, for all jobs on the dataset together"
        )
        yield "origin reads", f"{number(last.get('per_item'), 2)} per item of epoch {last.get('epoch')}{bound}"
    if isinstance(measured := job.get("measured"), dict):
        yield "being measured", named(measured)


def _remove(admin: Admin, options: Namespace) -> dict[str, str]:
    owner, job = _named(admin, options.job, "remove")
    admin.ask("DELETE", path("jobs", owner, job))
    return {"removed": f"{owner}/{job}"}


def _named(admin: Admin, name: str, verb: str) -> tuple[str, str]:
    """Tenant and name of a job.

    Raises:
        ConfigError: the text is not a name of a job.
        LarderError: there is no such job, or more than one.
    """
    tenant, slash, job = name.rpartition("/")
    if not job:
        raise ConfigError(f"JOB: {name!r} must look like vision/resnet50-17, or resnet50-17")
    if slash:
        return tenant, job
    owners = sorted({str(row.get("tenant")) for row in admin.listed("jobs") if row.get("job") == job})
    if not owners:
        raise LarderError(f"unknown job {job!r}; see {hint('jobs', 'list')}")
    if len(owners) > 1:
        named = ", ".join(hint("jobs", verb, f"{owner}/{job}") for owner in owners)
        raise LarderError(f"several tenants have a job {job!r}: {named}")
    return owners[0], job

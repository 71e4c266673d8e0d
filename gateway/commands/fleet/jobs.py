"""``larder-gateway jobs``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gateway.commands.common.connection import Admin, path
from gateway.commands.common.grammar import subcommand, subcommands
from gateway.commands.common.output import Column, age, hint, line, number, printable
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
        "larder-gateway jobs remove vision/resnet50-17",
    )
    add_list(commands, "jobs", "list the jobs", listing("jobs", COLUMNS))
    removed = subcommand(
        commands,
        "remove",
        "forget a job that ended without unregistering; a running job registers again",
        answering(_remove, lambda _, answer: line(f"{printable(answer['removed'])} is forgotten")),
        "larder-gateway jobs remove vision/resnet50-17",
        "larder-gateway jobs remove resnet50-17",
    )
    removed.add_argument("job", metavar="[TENANT/]JOB", help="the tenant is optional if only one has such a job")


def _remove(admin: Admin, options: Namespace) -> dict[str, str]:
    tenant, slash, job = options.job.rpartition("/")
    if not job:
        raise ConfigError(f"JOB: {options.job!r} must look like vision/resnet50-17, or resnet50-17")
    owner = tenant if slash else _owner(admin, job)
    admin.ask("DELETE", path("jobs", owner, job))
    return {"removed": f"{owner}/{job}"}


def _owner(admin: Admin, job: str) -> str:
    """The tenant with a job of this name.

    Raises:
        LarderError: there is no such job, or more than one.
    """
    owners = sorted({str(each.get("tenant")) for each in admin.listed("jobs") if each.get("job") == job})
    if not owners:
        raise LarderError(f"unknown job {job!r}; see {hint('jobs', 'list')}")
    if len(owners) > 1:
        named = ", ".join(hint("jobs", "remove", f"{owner}/{job}") for owner in owners)
        raise LarderError(f"several tenants have a job {job!r}: {named}")
    return owners[0]

"""The course of the demo: what happens, in order. Importing it takes what the extra ``demo`` installs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from gateway.demo import data, steps, table
from gateway.demo.interrupts import Interrupts
from gateway.demo.processes import DemoFailed
from gateway.demo.table import console
from gateway.demo.world import VISION, World, build


def take(keep: bool, port: int, command: Sequence[str], stack: ExitStack, interrupts: Interrupts) -> None:
    """Start the parts, show what the gateway does, and say how to go on; the arguments are those of ``run_demo``.

    Raises:
        DemoFailed: something was not as the demo claims.
    """
    with console.status("starting an origin (moto) and a gateway ..."):
        world = build(port, stack, interrupts, command)
    _show(world)
    _farewell(world, keep)
    if keep:
        code = world.gateway.process.wait()
        raise DemoFailed(f"the gateway ended with exit code {code}")


def _show(world: World) -> None:
    console.print(
        f"[bold]Larder[/] at {world.endpoint}, in front of moto (S3 in memory) at {world.origin}", soft_wrap=True
    )
    small, large = data.digits(), data.large()
    steps.store(world, {**small, **large})
    client = world.client(world.endpoint, VISION)
    rows = steps.cold_and_warm(world, client, small, large)
    console.print()
    console.print(table.passes(rows))
    console.print("  Every body was compared with what was stored. The origin is on this machine.\n")
    facts = {
        "Saved": steps.saved(rows),
        "Stored once": steps.stored_once(world, client, large),
        "Written": steps.written(world, client, small),
        "Refused": steps.refused(world, small),
    }
    console.print(table.facts(facts))
    console.print(
        "  moto enforces no rights: the refusal is the gateway's, by the tenant's allow-list.\n", soft_wrap=True
    )


def _farewell(world: World, keep: bool) -> None:
    lines = [
        f"export AWS_ENDPOINT_URL={world.endpoint} AWS_DEFAULT_REGION=us-east-1",
        f"export AWS_ACCESS_KEY_ID={VISION.access_key_id} AWS_SECRET_ACCESS_KEY={VISION.secret_access_key}",
        f"aws s3 ls s3://{data.BUCKET}/digits/",
    ]
    if keep:
        console.print(f"Running until Ctrl-C: S3 and {world.endpoint}/-/metrics. From another terminal:")
    else:
        console.print("Stopping. With KEEP=1 (or --keep) it stays up, and any S3 client can use it:")
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)

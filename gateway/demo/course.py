"""The steps of the demo, in order. Importing it needs the extra ``demo``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

from gateway.demo import data, reads, steps, table
from gateway.demo.clients import VISION, s3_client
from gateway.demo.interrupts import Interrupts
from gateway.demo.processes import DemoFailed
from gateway.demo.table import console
from gateway.demo.world import World, build


def take(
    keep: bool, port: int, training: bool, command: Sequence[str], stack: ExitStack, interrupts: Interrupts
) -> None:
    """Start the parts, demonstrate the gateway, and print how to continue; the arguments are those of ``run_demo``.

    Raises:
        DemoFailed: a claim of the demo did not hold.
    """
    with console.status("starting an origin (moto) and a gateway ..."):
        world = build(port, stack, interrupts, command)
    digits = data.digits()
    images = _show(world, data.learnt(digits))
    small = _train(world, images, digits) if training else None
    _farewell(world, keep, small)
    if keep:
        code = world.gateway.process.wait()
        raise DemoFailed(f"the gateway ended with exit code {code}")


def _show(world: World, small: Mapping[str, bytes]) -> dict[str, bytes]:
    """Run all steps except the training; returns the images as now stored."""
    console.print(
        f"[bold]Larder[/] at {world.endpoint}, in front of moto (S3 in memory) at {world.origin}", soft_wrap=True
    )
    large = data.large()
    reads.store("storing objects at the origin", world.origin, {**small, **large})
    client = s3_client(world.endpoint, VISION)
    rows = steps.cold_and_warm(world, client, small, large)
    console.print()
    console.print(table.passes(rows))
    console.print("  Every body was compared with what was stored. The origin is on this machine.\n")
    written, images = steps.written(world, client, small)
    facts = {
        "Saved": steps.saved(rows),
        "Stored once": steps.stored_once(world, client, large),
        "Written": written,
        "Refused": steps.refused(world, small),
    }
    console.print(table.facts(facts))
    console.print(
        "  moto enforces no rights: the refusal is the gateway's, by the tenant's allow-list.\n", soft_wrap=True
    )
    return images


def _train(world: World, images: Mapping[str, bytes], digits: Mapping[str, bytes]) -> str:
    """Run the training on images, and test on all other digits; returns the address of the gateway with the small cache."""
    # Imported here, because the other steps need neither the client nor PyTorch.
    learnt = import_module("gateway.demo.learning").learn(
        world, images, {key: body for key, body in digits.items() if key not in images}
    )
    console.print(table.training(learnt.epochs))
    console.print(f"  {learnt.prepared}\n{table.training_in_words(learnt.epochs)}\n", soft_wrap=True)
    gateway: str = learnt.gateway
    return gateway


def _farewell(world: World, keep: bool, small: str | None) -> None:
    lines = [
        f"export AWS_ENDPOINT_URL={world.endpoint} AWS_DEFAULT_REGION=us-east-1",
        f"export AWS_ACCESS_KEY_ID={VISION.access_key_id} AWS_SECRET_ACCESS_KEY={VISION.secret_access_key}",
        f"aws s3 ls s3://{data.BUCKET}/digits/",
    ]
    if keep and small is not None:
        lines[-1:] = [
            f"export PATH={Path(sys.executable).parent}:$PATH",
            f"larder digest build s3://{data.BUCKET}/digits/ -o digits.parquet",
            "larder datasets register digits digits.parquet",
            "python examples/train_digits.py --dataset digits   # in a clone of the repository",
            f"AWS_ENDPOINT_URL={small} python examples/train_digits.py --dataset digits.parquet   # the small cache",
            lines[-1],
        ]
    table.farewell(keep, f"Running until Ctrl-C, with {world.endpoint}/-/metrics.", lines)

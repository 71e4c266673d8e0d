"""``larder-gateway demo``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gateway.commands.common.grammar import describe
from gateway.demo.run import run_demo


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _demo,
        "Start a small store and a gateway, show what the cache does, with requests counted at the store, and remove everything.",
        "larder-gateway demo --no-train",
        "larder-gateway demo --keep --port 9000",
    )
    command.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    command.add_argument("--port", metavar="PORT", type=int, default=0, help="port of the gateway; 0 picks a free one")
    command.add_argument("--no-train", action="store_true", help="leave out the training, which needs PyTorch")


def _demo(options: Namespace) -> int:
    return run_demo(keep=options.keep, port=options.port, training=not options.no_train)

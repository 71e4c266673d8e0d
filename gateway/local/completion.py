"""``larder-gateway completion``: the script by which a shell completes commands and options."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gateway.base.imports import imported
from gateway.commands.common.grammar import describe

SHELLS = ("bash", "zsh", "tcsh")


def add(command: ArgumentParser) -> None:
    """Declare the arguments."""
    describe(
        command,
        _run,
        "Prints the script by which a shell completes the commands and options of larder-gateway.",
        'eval "$(larder-gateway completion bash)"    # in ~/.bashrc',
        'larder-gateway completion zsh > "${fpath[1]}/_larder-gateway"',
    )
    command.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")


def _run(options: Namespace) -> int:
    print(imported("shtab").complete(options.whole_grammar(), shell=options.shell))
    return 0

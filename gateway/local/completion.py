"""``larder-gateway completion``: the script with which a shell completes commands and options."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gateway.base.imports import imported
from gateway.commands.common.grammar import describe

SHELLS = ("bash", "zsh", "fish")


def add(command: ArgumentParser) -> None:
    """Declare the arguments."""
    describe(
        command,
        _run,
        "Prints the script by which a shell completes the commands and options of larder-gateway, and names of datasets, jobs,\n"
        "nodes, buckets and so on, which it asks the gateway of LARDER_ENDPOINT or --endpoint for.",
        'eval "$(larder-gateway completion bash)"    # in ~/.bashrc',
        'larder-gateway completion zsh > "${fpath[1]}/_larder-gateway"',
        "larder-gateway completion fish > ~/.config/fish/completions/larder-gateway.fish",
    )
    command.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")


def _run(options: Namespace) -> int:
    print(imported("argcomplete.shell_integration").shellcode(["larder-gateway"], shell=options.shell))
    return 0

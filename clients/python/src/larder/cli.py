"""The command ``larder``.

Exit status: 0 for success, 1 when something failed or differs, 2 for wrong usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import larder
from larder.errors import LarderError

FAILED, USAGE, INTERRUPTED = 1, 2, 130
_CACHING = ("auto", "full", "static", "chunked", "none")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status."""
    arguments = parser().parse_args(argv)
    module, _, function = arguments.run.partition(":")
    try:
        # Loaded when it is used: only some commands need what the extras install.
        status: int = getattr(import_module(module), function)(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has left; what is still in the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except ModuleNotFoundError as error:
        if error.name not in ("pyarrow", "numpy"):
            raise
        return _complain(f"this needs {error.name}: pip install 'larder[digest]'", FAILED)
    except (LarderError, OSError) as error:
        return _complain(str(error), FAILED)
    except ValueError as error:
        return _complain(str(error), USAGE)
    return status


def _complain(message: str, status: int) -> int:
    sys.stderr.write(f"larder: {message}\n")
    return status


def parser() -> ArgumentParser:
    """The grammar of the command line."""
    top = ArgumentParser("larder", description="Digest files, and the datasets of a Larder gateway.")
    top.add_argument("--version", action="version", version=f"larder {larder.__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    digest = commands.add_parser("digest", help="build digest files and look at them", description="Digest files.")
    kinds = digest.add_subparsers(metavar="COMMAND", required=True)
    for add in (_add_build, _add_show, _add_verify, _add_diff):
        add(kinds)
    dataset = commands.add_parser("dataset", help="the datasets of a gateway", description="The datasets of a gateway.")
    _add_datasets(dataset.add_subparsers(metavar="COMMAND", required=True))
    return top


def _add_build(commands: Any) -> None:
    command = _command(
        commands,
        "build",
        "larder.commands.digest:build",
        "list and hash the objects below a prefix",
        "Write the digest file of all objects below s3://bucket/prefix, through any S3 endpoint, gateway or not.\n\n"
        "What was read is kept in FILE.partial, so that the same command goes on after an interruption. If FILE is there\n"
        "already, only objects whose ETag or size changed since are read. Unchanged input gives an equal file.",
        "examples:\n"
        "  larder digest build s3://photos/train/ -o train.digest --include '*.jpg'\n"
        "  larder digest build s3://shards/ -o shards.digest --include '*.tar' --tar-members\n"
        "  larder digest build s3://records/ -o records.digest --index mypackage.records:items\n\n"
        "The function of --index is items(bucket, key, size, read) and gives (offset, length) of each item in an object;\n"
        "read(offset, length) gives its bytes. Patterns match whole keys; * also crosses /.",
    )
    command.add_argument("source", metavar="s3://BUCKET/PREFIX", help="where the objects are; keys begin with PREFIX")
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="the digest file")
    command.add_argument(
        "--include", metavar="GLOB", action="append", default=[], help="take only such keys; repeatable"
    )
    command.add_argument(
        "--exclude", metavar="GLOB", action="append", default=[], help="leave out such keys; repeatable"
    )
    inside = command.add_mutually_exclusive_group()
    inside.add_argument("--tar-members", action="store_true", help="the items are the files in TARs, not whole objects")
    inside.add_argument("--index", metavar="MODULE:FUNCTION", help="a function says where in each object its items are")
    command.add_argument("--fresh", action="store_true", help="read everything again, whatever is known")
    command.add_argument(
        "--no-store-checksums", action="store_true", help="read objects even if the store has their SHA-256"
    )
    _add_reading(command)


def _add_show(commands: Any) -> None:
    command = _command(
        commands, "show", "larder.commands.digest:show", "what is in a digest file", "Numbers of a digest file."
    )
    command.add_argument("file", metavar="FILE")
    command.add_argument(
        "--digests", action="store_true", help="list every item with its digest, which whoever knows it may read"
    )
    _add_json(command)


def _add_verify(commands: Any) -> None:
    command = _command(
        commands,
        "verify",
        "larder.commands.digest:verify",
        "read items again and compare",
        "Read items again, compare them with their digests, and list those that are missing or changed (exit status 1).",
    )
    command.add_argument("file", metavar="FILE")
    share = command.add_mutually_exclusive_group()
    share.add_argument("--sample", metavar="N", type=_count, default=1000, help="so many items, drawn at random (1000)")
    share.add_argument("--all", action="store_true", help="every item")
    command.add_argument("--seed", metavar="N", type=int, help="draw the same sample each time")
    _add_reading(command)


def _add_diff(commands: Any) -> None:
    command = _command(
        commands,
        "diff",
        "larder.commands.digest:diff",
        "what differs between two digest files",
        "List what was added (+), removed (-) and changed (~) from A to B, by bucket, key and offset; exit status 1 if any.",
    )
    command.add_argument("first", metavar="A")
    command.add_argument("second", metavar="B")
    _add_json(command)


def _add_datasets(commands: Any) -> None:
    register = _command(
        commands,
        "register",
        "larder.commands.dataset:register",
        "tell a gateway of a dataset",
        "Register a digest file at a gateway, by upload or by its address. Registering again is harmless.",
    )
    register.add_argument("name", metavar="NAME")
    register.add_argument("source", metavar="FILE|s3://BUCKET/KEY", help="the digest file")
    register.add_argument("--caching", choices=_CACHING, default="auto", help="how it is cached (auto)")
    known = _command(
        commands, "list", "larder.commands.dataset:listing", "all datasets", "The datasets that were registered."
    )
    shown = _command(
        commands, "show", "larder.commands.dataset:show", "one dataset", "What a gateway knows of a dataset."
    )
    shown.add_argument("name", metavar="NAME|ID")
    removed = _command(
        commands, "remove", "larder.commands.dataset:remove", "forget a dataset", "Make a gateway forget a dataset."
    )
    removed.add_argument("name", metavar="NAME")
    for command in (register, known, shown, removed):
        _add_where(command)
        _add_json(command)


def _command(commands: Any, name: str, run: str, summary: str, description: str, epilog: str = "") -> ArgumentParser:
    command: ArgumentParser = commands.add_parser(
        name, help=summary, description=description, epilog=epilog, formatter_class=RawDescriptionHelpFormatter
    )
    command.set_defaults(run=run)
    return command


def _add_reading(command: ArgumentParser) -> None:
    command.add_argument("--jobs", metavar="N", type=_count, default=16, help="objects read at once (16)")
    command.add_argument("--no-progress", action="store_true", help="say nothing on standard error while working")
    _add_where(command)
    _add_json(command)


def _add_where(command: ArgumentParser) -> None:
    command.add_argument(
        "--endpoint", metavar="URL", help="of the gateway or S3 store (LARDER_ENDPOINT, AWS_ENDPOINT_URL, the profile)"
    )
    command.add_argument("--profile", metavar="NAME", help="of the AWS files, for keys, region and endpoint")


def _add_json(command: ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON, one document per line")


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise ArgumentTypeError(f"{text!r} is no number of things: 1, 2, ...")
    return int(text)

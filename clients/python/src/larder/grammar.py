"""The grammar of the command ``larder``. Loads nothing heavy: a command's code is imported when the command runs."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, RawDescriptionHelpFormatter
from difflib import get_close_matches
from typing import Any, NoReturn

import larder
from larder.base.sizes import parse_size

_SHELLS = ("bash", "zsh", "fish")
_CACHING = ("auto", "full", "part", "none")
_WRONG = re.compile(r"argument (?P<what>\S+): invalid choice: '(?P<given>.*)' \(choose from (?P<choices>.*)\)$")
"""Error text of argparse for an invalid choice."""
_EPILOG = """\
Gateways are found by --endpoint, LARDER_ENDPOINT or AWS_ENDPOINT_URL, keys where AWS's tools look. "larder help COMMAND"
explains one, with examples.

exit status: 0 good; 1 a problem; 2 wrong usage or configuration; 130 Ctrl-C"""


class Parser(ArgumentParser):
    """A parser that suggests corrections for mistyped commands and choices; so do the parsers of its subcommands."""

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and exit with status 2."""
        wrong = _WRONG.search(message)
        if wrong is not None:
            choices = [choice.strip(" '") for choice in wrong["choices"].split(",")]
            meant = get_close_matches(wrong["given"], choices, 1)
            kind = "command" if wrong["what"] == "COMMAND" else f"value of {wrong['what']}"
            message = f"{wrong['given']!r} is no {kind}; " + (
                f"did you mean {meant[0]!r}?" if meant else f"there are {', '.join(choices)}"
            )
        super().error(message)


def parser() -> ArgumentParser:
    """The grammar of the command line."""
    top = Parser(
        "larder",
        description="Digest files, and the datasets, jobs and objects of a Larder gateway.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"larder {larder.__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    digest = commands.add_parser("digest", help="build and inspect digest files", description="Digest files.")
    kinds = digest.add_subparsers(metavar="COMMAND", required=True)
    for add in (_add_build, _add_show, _add_verify, _add_diff):
        add(kinds)
    datasets = commands.add_parser(
        "datasets", aliases=["dataset"], help="the datasets of a gateway", description="The datasets of a gateway."
    )
    _add_datasets(datasets.add_subparsers(metavar="COMMAND", required=True))
    jobs = commands.add_parser("jobs", help="training jobs", description="The training jobs of your tenant.")
    _add_jobs(jobs.add_subparsers(metavar="COMMAND", required=True))
    pipelines = commands.add_parser(
        "pipelines", help="input pipelines", description="The input pipelines of your tenant's jobs."
    )
    _add_pipelines(pipelines.add_subparsers(metavar="COMMAND", required=True))
    _add_bench(commands)
    _add_estimate(commands)
    _add_objects(commands)
    _add_completion(commands)
    commands.add_parser("help", help="explain a command: help digest build")
    return top


def _add_build(commands: Any) -> None:
    command = _command(
        commands,
        "build",
        "larder.commands.digest:build",
        "list and hash the objects below a prefix",
        "Write the digest file of all objects below s3://bucket/prefix, through any S3 endpoint, gateway or not.\n\n"
        "FILE.partial keeps the progress: repeat the command after an interruption. If FILE exists, only objects whose ETag or\n"
        "size changed since are read. Unchanged input gives an equal file.",
        "examples:\n"
        "  larder digest build s3://photos/train/ -o train.digest --include '*.jpg'\n"
        "  larder digest build s3://shards/ -o shards.digest --include '*.tar' --tar-samples\n"
        "  larder digest build s3://pairs/ -o pairs.digest --samples jpg,cls\n"
        "  larder digest build s3://records/ -o records.digest --index mypackage.records:items\n\n"
        "The function of --index is items(bucket, key, size, read) and gives (offset, length) of each item in an object;\n"
        "read(offset, length) gives its bytes. Patterns match whole keys; * also crosses /.",
    )
    command.add_argument("source", metavar="s3://BUCKET/PREFIX", help="where the objects are; keys begin with PREFIX")
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="the digest file")
    command.add_argument(
        "--include", metavar="GLOB", action="append", default=[], help="include only these keys; repeatable"
    )
    command.add_argument(
        "--exclude", metavar="GLOB", action="append", default=[], help="exclude these keys; repeatable"
    )
    inside = command.add_mutually_exclusive_group()
    inside.add_argument(
        "--samples",
        metavar="MEMBERS",
        help="the items are the samples that files form: a.jpg, a.cls, ... with --samples jpg,cls; the largest first",
    )
    inside.add_argument("--tar-members", action="store_true", help="the items are the files in TARs, not whole objects")
    inside.add_argument(
        "--tar-samples", action="store_true", help="the items are the samples in TARs: adjacent files a.jpg, a.cls, ..."
    )
    inside.add_argument("--row-groups", action="store_true", help="the items are the row groups of Parquet files")
    inside.add_argument("--index", metavar="MODULE:FUNCTION", help="a function that locates the items of each object")
    command.add_argument("--skip-incomplete", action="store_true", help="leave out --samples that lack a member")
    command.add_argument("--fresh", action="store_true", help="read everything again")
    command.add_argument(
        "--no-store-checksums", action="store_true", help="read objects even if the store has their SHA-256"
    )
    command.add_argument(
        "--request-payer",
        action=BooleanOptionalAction,
        help="accept the charges of a requester-pays bucket; by default only once a request is refused",
    )
    _add_reading(command)


def _add_show(commands: Any) -> None:
    command = _command(
        commands,
        "show",
        "larder.commands.digest:show",
        "describe a digest file",
        "Describe a digest file: id, items, sizes, buckets, duplicates.",
    )
    command.add_argument("file", metavar="FILE", help="a digest file")
    command.add_argument(
        "--digests", action="store_true", help="list every item with its digest, which is the right to read the item"
    )
    _add_json(command, several=True)


def _add_verify(commands: Any) -> None:
    command = _command(
        commands,
        "verify",
        "larder.commands.digest:verify",
        "read items again and compare",
        "Read items again, compare them with their digests, and list those that are missing or changed (exit status 1).",
    )
    command.add_argument("file", metavar="FILE", help="a digest file")
    share = command.add_mutually_exclusive_group()
    share.add_argument("--sample", metavar="N", type=_count, default=1000, help="number of random items (1000)")
    share.add_argument("--all", action="store_true", help="every item")
    command.add_argument("--seed", metavar="N", type=int, help="draw the same sample each time")
    _add_reading(command, several=True)


def _add_diff(commands: Any) -> None:
    command = _command(
        commands,
        "diff",
        "larder.commands.digest:diff",
        "compare two digest files",
        "List what was added (+), removed (-) and changed (~) from A to B, by bucket, key and offset; exit status 1 if any.",
    )
    command.add_argument("first", metavar="A", help="a digest file")
    command.add_argument("second", metavar="B", help="another one")
    _add_json(command, several=True)


def _mode(name: str) -> str:
    """A caching mode; scripts written for version 0.1 use older names of ``part``."""
    return "part" if name in ("static", "chunked") else name


def _add_datasets(commands: Any) -> None:
    register = _command(
        commands,
        "register",
        "larder.commands.dataset:register",
        "register a dataset",
        "Register a digest file at a gateway, by upload or by its address. Registering again is harmless.",
        "example:\n  larder datasets register imagenet-train imagenet.parquet --caching part",
    )
    register.add_argument("name", metavar="NAME", help="1 to 128 of A-Z a-z 0-9 . _ -")
    register.add_argument("source", metavar="FILE|s3://BUCKET/KEY", help="the digest file")
    register.add_argument(
        "--caching",
        type=_mode,
        choices=_CACHING,
        default="auto",
        help="how it is cached (auto); the older names static and chunked mean part",
    )
    register.add_argument(
        "--request-payer",
        action="store_true",
        help="accept the charges of requester-pays buckets for reads of its items",
    )
    register.add_argument(
        "--listing",
        choices=("forward", "immutable"),
        default="forward",
        help="who answers S3 listings of its folder: the store (forward), or, until a write through the gateways or another\n"
        "registration, a recorded one",
    )
    known = _command(
        commands, "list", "larder.commands.dataset:listing", "all datasets", "List the registered datasets."
    )
    shown = _command(commands, "show", "larder.commands.dataset:show", "one dataset", "Describe a dataset.")
    shown.add_argument("name", metavar="NAME|ID", help="as datasets list has it")
    removed = _command(
        commands,
        "remove",
        "larder.commands.dataset:remove",
        "forget a dataset",
        "Make a gateway forget a dataset. Cached bytes stay until they are evicted.",
    )
    removed.add_argument("name", metavar="NAME", help="as datasets list has it")
    for command in (register, known, shown, removed):
        _add_where(command)
        _add_json(command)


def _add_pipelines(commands: Any) -> None:
    known = _command(
        commands,
        "list",
        "larder.commands.pipelines:listing",
        "all pipelines",
        "List the pipelines of jobs: where they cache and why, and their workers.",
    )
    shown = _command(
        commands,
        "show",
        "larder.commands.pipelines:show",
        "one pipeline",
        "Describe the pipeline of a job: what its stages cost, decisions with their numbers, and workers over time.",
    )
    shown.add_argument("job", metavar="JOB", help="the job's name, as pipelines list has it")
    for command in (known, shown):
        _add_where(command)
        _add_json(command)


def _add_jobs(commands: Any) -> None:
    known = _command(
        commands,
        "list",
        "larder.commands.jobs:listing",
        "all jobs",
        "List the registered jobs that still send heartbeats.",
    )
    shown = _command(
        commands,
        "show",
        "larder.commands.jobs:show",
        "one job",
        "Describe a job: its position, and the mean time of its steps with the cache and without.",
    )
    shown.add_argument("job", metavar="JOB", help="its name, as jobs list has it")
    for command in (known, shown):
        _add_where(command)
        _add_json(command)


def _add_bench(commands: Any) -> None:
    command = _command(
        commands,
        "bench",
        "larder.commands.bench:bench",
        "measure how fast a dataset is read",
        "Read a dataset in random batches, one after the other, as a loader without a model does, and print items and bytes per\n"
        "second and the time of a batch. --compare then reads the same batches by concurrent S3 GETs. Run it twice to measure a\n"
        "warm cache. Exit status 1 if an item could not be read.",
        "examples:\n"
        "  larder bench imagenet-train --seconds 30\n"
        "  larder bench imagenet-train --compare\n"
        "  larder bench imagenet-train --compare --compare-endpoint https://s3.eu-west-1.amazonaws.com --compare-profile store",
    )
    command.add_argument("dataset", metavar="NAME|FILE", help="a registered dataset, or a digest file to register")
    command.add_argument("--seconds", metavar="N", type=_seconds, default=10.0, help="duration (10)")
    command.add_argument("--batch-size", metavar="N", type=_count, default=256, help="items of a batch (256)")
    command.add_argument(
        "--substitute", metavar="N", type=_count, default=10, help="candidates for each item of a batch (10); 1: none"
    )
    command.add_argument("--pool", metavar="N", type=_count, default=100_000, help="only the first N items (100000)")
    command.add_argument("--seed", metavar="N", type=int, default=0, help="of the order (0)")
    command.add_argument("--compare", action="store_true", help="also by plain S3")
    command.add_argument("--compare-endpoint", metavar="URL", help="of the plain S3 (the gateway)")
    command.add_argument("--compare-profile", metavar="NAME", help="of the AWS files, for keys at that endpoint")
    command.add_argument("--connections", metavar="N", type=_count, default=16, help="plain GETs at once (16)")
    _add_where(command)
    _add_json(command)


def _add_estimate(commands: Any) -> None:
    command = _command(
        commands,
        "estimate",
        "larder.commands.estimate:estimate",
        "reads of the store per epoch, before you buy a cache",
        "Print how many items an epoch of a dataset reads from the store, by the size of the cache (cache.capacity of all nodes\n"
        "together), from the second epoch on: READS with Larder, for all jobs of the same speed together; WITHOUT a cache; and\n"
        "BY PATH, for one job that reads through a cache that evicts what was read longest ago. It is arithmetic;\n"
        "larder-gateway simulate runs jobs of any speeds and several datasets.",
        "examples:\n"
        "  larder estimate imagenet-train --cache 40GB --cache 100GB --jobs 4\n"
        "  larder estimate --items 1281167 --bytes 140GB",
    )
    command.add_argument("dataset", metavar="NAME|FILE", nargs="?", help="a registered dataset, or a digest file")
    command.add_argument("--items", metavar="N", type=_count, help="of a dataset that is not there yet")
    command.add_argument("--bytes", metavar="SIZE", type=_size, help="of such a dataset")
    command.add_argument(
        "--cache", metavar="SIZE", type=_size, action="append", help="of the cache; repeatable (parts of the dataset)"
    )
    command.add_argument("--jobs", metavar="N", type=_count, default=1, help="jobs on it at the same time (1)")
    _add_where(command)
    _add_json(command)


def _add_objects(commands: Any) -> None:
    listed = _command(
        commands,
        "ls",
        "larder.commands.objects:listing",
        "list buckets, or objects",
        "List your buckets, or the objects and folders below a prefix, with their bytes. Exit status 1 if no key begins with it.",
        "examples:\n  larder ls s3://photos/train/\n  larder ls -r s3://photos/train/",
    )
    listed.add_argument("place", metavar="s3://BUCKET/PREFIX", nargs="?", help="without it, the buckets")
    listed.add_argument("-r", "--recursive", action="store_true", help="all objects below it, instead of folders")
    copied = _command(
        commands,
        "cp",
        "larder.commands.objects:copy",
        "copy an object to a file, or a file to an object",
        "Copy one object to a local file, or one local file to an object; - is standard input or output. A name that ends in /\n"
        "is a folder. A file is replaced when all bytes are there; an upload is one request, of up to 5 GiB at AWS. For whole\n"
        "folders use any S3 client, such as aws s3 sync or rclone, with the gateway as its endpoint.",
        "examples:\n"
        "  larder cp s3://photos/train/0001.jpg .\n"
        "  larder cp train.digest s3://photos/digests/\n"
        "  larder cp s3://shards/train-0000.tar - | tar t",
    )
    copied.add_argument("source", metavar="SOURCE", help="s3://BUCKET/KEY, a file, or -")
    copied.add_argument("target", metavar="TARGET", help="s3://BUCKET/KEY, a file or directory, or -")
    for command in (listed, copied):
        command.add_argument(
            "--request-payer", action="store_true", help="accept the charges of a requester-pays bucket"
        )
        _add_where(command)
    _add_json(listed, several=True)


def _add_completion(commands: Any) -> None:
    command = _command(
        commands,
        "completion",
        "larder.commands.completion:script",
        "the script by which a shell completes commands",
        "Print the script by which a shell completes commands, options, names of datasets and jobs, and s3://BUCKET/PREFIX.\n"
        "It needs pip install 'larder[completion]'.",
        'examples:\n  eval "$(larder completion bash)"    # in ~/.bashrc\n'
        "  larder completion fish > ~/.config/fish/completions/larder.fish",
    )
    command.add_argument("shell", metavar="SHELL", choices=_SHELLS, help=f"one of {', '.join(_SHELLS)}")


def _command(commands: Any, name: str, run: str, summary: str, description: str, epilog: str = "") -> ArgumentParser:
    command: ArgumentParser = commands.add_parser(
        name, help=summary, description=description, epilog=epilog, formatter_class=RawDescriptionHelpFormatter
    )
    command.set_defaults(run=run)
    return command


def _add_reading(command: ArgumentParser, *, several: bool = False) -> None:
    command.add_argument("--jobs", metavar="N", type=_count, default=16, help="objects read at once (16)")
    command.add_argument("--no-progress", action="store_true", help="show no progress on standard error")
    _add_where(command)
    _add_json(command, several=several)


def _add_where(command: ArgumentParser) -> None:
    command.add_argument(
        "--endpoint", metavar="URL", help="of the gateway or S3 store (LARDER_ENDPOINT, AWS_ENDPOINT_URL, the profile)"
    )
    command.add_argument("--profile", metavar="NAME", help="of the AWS files, for keys, region and endpoint")


def _add_json(command: ArgumentParser, *, several: bool = False) -> None:
    what = "JSON, a document on each line" if several else "one JSON document"
    command.add_argument("--json", action="store_true", help=f"print {what}")


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise ArgumentTypeError(f"{text!r} must be a positive integer")
    return int(text)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise ArgumentTypeError(f"{text!r} must be a positive number of seconds")
    return seconds

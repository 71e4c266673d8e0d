"""``larder completion``, and the completions that its script requests for a shell. Needs argcomplete, which the extra
``completion`` installs.

Names of datasets and jobs, and places of objects, come from the gateway that the line names. If it does not answer at once, none
are proposed.
"""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from itertools import islice
from typing import Any

from argcomplete import autocomplete
from argcomplete.completers import FilesCompleter
from argcomplete.shell_integration import shellcode

from larder.base.errors import LarderError
from larder.base.retry import Retry
from larder.commands import output
from larder.commands.jobs import all_pages
from larder.http.api import Api
from larder.http.credentials import CredentialSource, endpoint_of
from larder.http.s3 import S3

_PATIENCE = 1.0
"""Seconds to wait for an answer: the user is waiting at a prompt."""
_MOST = 100
"""The most places that are proposed."""
_ONCE = Retry(attempts=1)


def script(arguments: Namespace) -> int:
    """``larder completion``."""
    output.line(shellcode(["larder"], shell=arguments.shell))
    return 0


def complete(grammar: ArgumentParser) -> None:
    """Answer the shell's request in the environment's variables, and end the process."""
    _add_names(grammar)
    autocomplete(grammar, always_complete_options=False)


def _add_names(parser: ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for command in action.choices.values():
                _add_names(command)
        elif (names := _names(action, parser.prog)) is not None:
            action.completer = _completer(names)  # type: ignore[attr-defined]


def _names(action: Action, prog: str) -> Callable[[Namespace, str], Iterable[str]] | None:
    if str(action.metavar).startswith("NAME") and not action.option_strings and not prog.endswith(" register"):
        return _datasets
    if action.metavar == "JOB":
        return _jobs
    return _places if action.dest in ("place", "source", "target") else None


def _completer(names: Callable[[Namespace, str], Iterable[str]]) -> Callable[..., list[str]]:
    def completed(*, prefix: str, parsed_args: Namespace, **_: Any) -> list[str]:
        with suppress(LarderError, ValueError):
            return list(names(parsed_args, prefix))
        return []

    return completed


def _datasets(given: Namespace, _prefix: str) -> Iterator[str]:
    return (str(row["name"]) for row in _api(given).json("GET", "/-/v1/datasets").get("datasets", ()))


def _jobs(given: Namespace, _prefix: str) -> Iterator[str]:
    return (str(row["job"]) for row in all_pages(_api(given), "/-/v1/jobs", "jobs"))


def _places(given: Namespace, prefix: str) -> Iterator[str]:
    """Buckets, or names below a prefix; otherwise files."""
    if not prefix.startswith("s3:"):
        yield from FilesCompleter()(prefix)
        return
    bucket, slash, key = prefix.removeprefix("s3://").partition("/")
    credentials = CredentialSource(profile=given.profile)
    with closing(S3(_endpoint(given), credentials=credentials, timeout=_PATIENCE, retry=_ONCE)) as s3:
        if not slash:
            yield from (f"s3://{name}/" for name in s3.buckets())
        else:
            below = islice(s3.children(bucket, key, most=_MOST), _MOST)
            yield from (f"s3://{bucket}/{entry.key}" for entry in below)


def _api(given: Namespace) -> Api:
    return Api(_endpoint(given), credentials=CredentialSource(profile=given.profile), timeout=_PATIENCE, retry=_ONCE)


def _endpoint(given: Namespace) -> str:
    return endpoint_of(given.endpoint, profile=given.profile)

"""``larder datasets``: the datasets registered at a gateway."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from larder.base.dataset import DatasetInfo
from larder.commands import output
from larder.http.client import Client
from larder.http.credentials import CredentialSource, endpoint_of


def register(arguments: Namespace) -> int:
    """``larder dataset register``."""
    registered = client_of(arguments).register(
        arguments.name,
        arguments.source,
        caching=arguments.caching,
        request_payer=arguments.request_payer,
        listing=arguments.listing,
    )
    _print_info(arguments, registered)
    return 0


def show(arguments: Namespace) -> int:
    """``larder dataset show``."""
    _print_info(arguments, client_of(arguments).dataset(arguments.name))
    return 0


def listing(arguments: Namespace) -> int:
    """``larder dataset list``."""
    known = client_of(arguments).datasets()
    if arguments.json:
        output.document({"datasets": [asdict(info) for info in known]})
    elif known:
        heading = ("NAME", "ITEMS", "BYTES", "RESIDENT", "CACHING", "ID")
        rows = [(info.name, info.items, info.bytes, info.resident, info.caching, info.id) for info in known]
        output.table([heading, *rows])
    else:
        output.line("no datasets")
    return 0


def remove(arguments: Namespace) -> int:
    """``larder dataset remove``."""
    client_of(arguments).remove(arguments.name)
    if arguments.json:
        output.document({"removed": arguments.name})
    else:
        output.line(f"{arguments.name} is forgotten")
    return 0


def client_of(arguments: Namespace) -> Client:
    """The gateway that the arguments name."""
    endpoint = endpoint_of(arguments.endpoint, profile=arguments.profile)
    return Client(endpoint, credentials=CredentialSource(profile=arguments.profile))


def _print_info(arguments: Namespace, info: DatasetInfo) -> None:
    if arguments.json:
        output.document(asdict(info))
        return
    output.table([(name, _text(value)) for name, value in asdict(info).items()])


def _text(value: object) -> object:
    if isinstance(value, tuple):
        return ", ".join(value) or "forward"
    return f"{value:,}" if isinstance(value, int) else value

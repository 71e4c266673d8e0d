"""The client of aiobotocore for control operations at the origins: it builds their requests and parses their answers.

It sends nothing itself. Only the path and query of its requests are used; the caller sends them, and the caller's identity
decides the destination.

``listing.py`` imports this module at the first listing: aiobotocore takes a quarter of a start, and few gateways list at once.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from aiobotocore.awsrequest import AioAWSResponse
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore import UNSIGNED
from botocore.exceptions import BotoCoreError, ClientError

FAILURES: tuple[type[Exception], ...] = (BotoCoreError, ClientError)
"""Errors of a call, besides those of ``fetch`` and of Python, when request or answer is malformed."""
_ANY_ENDPOINT = "http://origin"
"""A dummy address, because botocore requires one."""
_READ = frozenset({"Key", "Size"})
"""The fields read of a listed object. Without the other handlers, a page of a thousand keys takes half the time, 12 ms."""

Fetch = Callable[[str, str, str], Awaitable[bytes]]
"""Sends a request (method, path, query) and returns the body of its answer, which has status 200."""


async def create(fetch: Fetch) -> Any:
    """A client of S3 whose requests ``fetch`` sends, unsigned and once each."""
    # Ignore the AWS CLI's files here: they must not change how the gateway lists.
    nowhere = {
        name: (None, None, value, None)
        for name, value in (("profile", None), ("config_file", os.devnull), ("credentials_file", os.devnull))
    }
    session = AioSession(nowhere)
    # Dates are not used; parsing them would take four fifths of a page's time.
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
    creating = session.create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=_ANY_ENDPOINT,
        config=AioConfig(
            signature_version=UNSIGNED,
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": 1},
            defaults_mode="legacy",
            use_fips_endpoint=False,
            use_dualstack_endpoint=False,
            warm_up_loader_caches=True,  # reads the model of S3 in a thread
        ),
    )
    client = await creating.__aenter__()
    _read_little(client)

    async def send(request: Any, **_: object) -> AioAWSResponse:
        target = urlsplit(request.url)
        answer = AioAWSResponse(request.url, 200, {}, None)
        answer._content = await fetch(request.method, target.path, target.query)  # the cache of ``content``
        return answer

    client.meta.events.register("before-send.s3", send)
    return client


def _read_little(client: Any) -> None:
    """Have the client parse only ``_READ`` of a listed object."""
    page = client.meta.service_model.operation_model("ListObjectsV2").output_shape
    described = page.members["Contents"].member.members
    for name in described.keys() - _READ:
        del described[name]

"""Withdrawal of all grants of a bucket after a change of its rights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gateway.model.keys import ObjectKey
from gateway.store.disk import Disk
from gateway.store.failures import DiskFault
from gateway.store.index import objects


async def withdraw(disk: Disk, bump: Callable[[ObjectKey], None], bucket: ObjectKey) -> None:
    """Make every worker of the node forget the grants in a bucket; its objects stay.

    As with objects, *bump, delete, bump*: the first bump fences what is being learned, the second invalidates what was read from
    the index between the first and the deletion. While the index cannot be written, all of it is distrusted.

    Args:
        disk: of the node.
        bump: changes a generation.
        bucket: what ``rights_in`` gives for it.
    """
    bump(bucket)
    last: str | None = ""
    try:
        while last is not None:
            page = partial(objects.withdraw_page, origin=bucket.origin, bucket=bucket.bucket, after=last)
            last = await disk.write(page)
    except DiskFault:
        disk.generations.distrust_all()
    finally:
        bump(bucket)

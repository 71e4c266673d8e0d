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

    As with objects, *bump, delete, bump*: the first bump fences grants being learned, the second invalidates rows read from
    the index before the deletion. While the index cannot be written, all of it is distrusted.

    Args:
        disk: of the node.
        bump: changes a generation.
        bucket: the result of ``rights_in`` for the bucket.
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

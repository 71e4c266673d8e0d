"""Reads digest files in the process that registers them: a separate process costs more than most tests that need a dataset.

Files that kill their reader or exceed its limits are read like in a gateway, in separate processes: in
tests/store/test_datasets_convert.py, and by gateways in tests/api/test_v1_datasets_failures.py and test_v1_datasets_quota.py.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from gateway.store.datasets.conversion import Converted, Grant, Limits, _judge
from gateway.store.datasets.convert import ConversionJob, _attempt
from gateway.store.datasets.registry import Registry


async def convert_near(registry: Registry, tenant: str, parquet: Path, draft: Path, grant: Grant) -> Converted:
    """Replaces ``Registry._convert``: the same results and errors, without limits of memory and time."""
    return await read_near(parquet, draft, registry.limits, grant)


async def read_near(parquet: Path, draft: Path, limits: Limits, grant: Grant) -> Converted:
    """Replaces ``gateway.store.datasets.conversion.convert``: the same results and errors, without limits of memory and time."""
    job = ConversionJob(grant.allow, 0, grant.items, grant.output, limits.reserve)
    result = await asyncio.to_thread(_attempt, parquet, draft, job)
    return _judge(0 if "id" in result else 1, json.dumps(result).encode(), b"", limits)


class NearRegistry(Registry):
    """A registry that reads digest files in this process."""

    _convert = convert_near

"""Larder's client for datasets and batches of their items.

Plain reads and writes need nothing from here: any S3 client uses a gateway by its endpoint setting. Importing this package
loads nothing; each name loads its module when it is first used, so that a data-loading worker pays only for what it uses.
"""

from importlib import import_module

TYPE_CHECKING = (
    False  # type checkers take this name for True; importing typing for it would cost more than all the rest
)

if TYPE_CHECKING:
    from larder.base.dataset import DatasetInfo, Directives, ItemLocation
    from larder.base.errors import (
        CredentialsMissing,
        DigestFileError,
        ElementDamaged,
        ElementUnstorable,
        GatewayUnavailable,
        ItemChanged,
        ItemError,
        ItemMissing,
        ItemRefused,
        ItemUnavailable,
        ItemUntransformable,
        LarderError,
        LarderWarning,
        ObjectChanged,
        ObjectMissing,
        PipelineError,
        RequestRefused,
        S3Error,
        StageFailed,
        StateError,
        TruncatedBatch,
        UnevenRanks,
        UnexpectedAnswer,
        UnknownDataset,
    )
    from larder.base.retry import Retry
    from larder.base.stats import Stats
    from larder.http.client import Client
    from larder.http.credentials import Credentials
    from larder.http.s3 import S3, ListedObject, ObjectHead
    from larder.pipelines import Pipeline, pipeline
    from larder.pipelines.ray_pool import WorkerPool
    from larder.planner import Shard, merge_states
    from larder.reading.aio import AsyncBatchReader, get_many_async
    from larder.reading.batch import BatchReader, Fetched
    from larder.reading.frames import ItemFailure
    from larder.reading.many import Entry, ManyReader, get_many
    from larder.reading.mixing import Mix
    from larder.reading.opened import OpenObject, open_objects
    from larder.reading.source import Access, Item
    from larder.training.heartbeat import JobDirectives
    from larder.training.job import Job
    from larder.training.loader import Loader
    from larder.training.run import Batch

__version__ = "0.2.0"
__all__ = [
    "S3",
    "Access",
    "AsyncBatchReader",
    "Batch",
    "BatchReader",
    "Client",
    "Credentials",
    "CredentialsMissing",
    "DatasetInfo",
    "DigestFileError",
    "Directives",
    "ElementDamaged",
    "ElementUnstorable",
    "Entry",
    "Fetched",
    "GatewayUnavailable",
    "Item",
    "ItemChanged",
    "ItemError",
    "ItemFailure",
    "ItemLocation",
    "ItemMissing",
    "ItemRefused",
    "ItemUnavailable",
    "ItemUntransformable",
    "Job",
    "JobDirectives",
    "LarderError",
    "LarderWarning",
    "ListedObject",
    "Loader",
    "ManyReader",
    "Mix",
    "ObjectChanged",
    "ObjectHead",
    "ObjectMissing",
    "OpenObject",
    "Pipeline",
    "PipelineError",
    "RequestRefused",
    "Retry",
    "S3Error",
    "Shard",
    "StageFailed",
    "StateError",
    "Stats",
    "TruncatedBatch",
    "UnevenRanks",
    "UnexpectedAnswer",
    "UnknownDataset",
    "WorkerPool",
    "get_many",
    "get_many_async",
    "merge_states",
    "open_objects",
    "pipeline",
]

# The module of each name that is not an error.
_MODULES = {
    "Access": "reading.source",
    "AsyncBatchReader": "reading.aio",
    "Batch": "training.run",
    "BatchReader": "reading.batch",
    "Client": "http.client",
    "Credentials": "http.credentials",
    "DatasetInfo": "base.dataset",
    "Directives": "base.dataset",
    "Entry": "reading.many",
    "Fetched": "reading.batch",
    "Item": "reading.source",
    "ItemFailure": "reading.frames",
    "ItemLocation": "base.dataset",
    "Job": "training.job",
    "JobDirectives": "training.heartbeat",
    "ListedObject": "http.s3",
    "Loader": "training.loader",
    "ManyReader": "reading.many",
    "Mix": "reading.mixing",
    "ObjectHead": "http.s3",
    "OpenObject": "reading.opened",
    "Pipeline": "pipelines",
    "Retry": "base.retry",
    "S3": "http.s3",
    "Shard": "planner",
    "Stats": "base.stats",
    "WorkerPool": "pipelines.ray_pool",
    "get_many": "reading.many",
    "get_many_async": "reading.aio",
    "merge_states": "planner",
    "open_objects": "reading.opened",
    "pipeline": "pipelines",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'base.errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Larder's client for datasets and batches of their items.

Plain reads and writes need nothing from here: any S3 client uses a gateway by its endpoint setting. Importing this package
loads nothing; each name loads its module when it is first used, so that a data-loading worker pays only for what it uses.
"""

from importlib import import_module

TYPE_CHECKING = (
    False  # type checkers take this name for True; importing typing for it would cost more than all the rest
)

if TYPE_CHECKING:
    from larder.aio import AsyncBatchReader
    from larder.batch import BatchReader, Fetched
    from larder.client import Client
    from larder.credentials import Credentials
    from larder.dataset import DatasetInfo, Directives, ItemLocation
    from larder.errors import (
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
    from larder.frames import ItemFailure
    from larder.heartbeat import JobDirectives
    from larder.job import Job
    from larder.loader import Loader
    from larder.mixing import Mix
    from larder.pipelines import Pipeline, pipeline
    from larder.planner import Shard, merge_states
    from larder.retry import Retry
    from larder.run import Batch
    from larder.s3 import S3, ListedObject, ObjectHead
    from larder.source import Access, Item
    from larder.stats import Stats

__version__ = "0.1.0"
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
    "Mix",
    "ObjectChanged",
    "ObjectHead",
    "ObjectMissing",
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
    "merge_states",
    "pipeline",
]

# Where each name lives that is not an error.
_MODULES = {
    "Access": "source",
    "AsyncBatchReader": "aio",
    "Batch": "run",
    "BatchReader": "batch",
    "Client": "client",
    "Credentials": "credentials",
    "DatasetInfo": "dataset",
    "Directives": "dataset",
    "Fetched": "batch",
    "Item": "source",
    "ItemFailure": "frames",
    "ItemLocation": "dataset",
    "Job": "job",
    "JobDirectives": "heartbeat",
    "ListedObject": "s3",
    "Loader": "loader",
    "Mix": "mixing",
    "ObjectHead": "s3",
    "Pipeline": "pipelines",
    "Retry": "retry",
    "S3": "s3",
    "Shard": "planner",
    "Stats": "stats",
    "merge_states": "planner",
    "pipeline": "pipelines",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Digest files: building, reading and checking them. Needs pyarrow, which the extra ``digest`` installs."""

from larder.digest.building import BuildIncomplete, Report, build
from larder.digest.file import DigestFile, Location, dataset_id, read
from larder.digest.items import IndexFailed
from larder.digest.progress import BuildProgress as Progress
from larder.digest.progress import Counts

__all__ = [
    "BuildIncomplete",
    "Counts",
    "DigestFile",
    "IndexFailed",
    "Location",
    "Progress",
    "Report",
    "build",
    "dataset_id",
    "read",
]

"""Digest files: listing, building and checking them. Needs pyarrow, which the extra ``digest`` installs."""

from larder.digest.file import DigestFile, Location, dataset_id, read

__all__ = ["DigestFile", "Location", "dataset_id", "read"]

"""Shared by every part of the client: errors, datasets as values, options, statistics, buffers, formats of files."""

"""What every part of the client may use: errors, datasets as values, options, statistics, buffers, formats of files."""

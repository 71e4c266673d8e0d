# /// script
# dependencies = ["smart_open[s3]==9.0.2"]
# ///
"""smart_open: an object, read from its beginning, and after a seek."""

from place import URL, content, run, version_of_content
from smart_open import open

SIZE = 20_000_000


def write(version):
    """Write the object."""
    with open(f"{URL}/object", "wb") as file:
        file.write(content(version, SIZE))


def read():
    """Read it."""
    with open(f"{URL}/object", "rb") as file:
        data = file.read()
        file.seek(12_345_678)
        assert file.read(1000) == data[12_345_678:][:1000]
    return version_of_content(data, SIZE)


run(write, read)

"""Parses an HTML form as it arrives: bounded fields first, then the file as a stream.

S3 ignores what follows the file. Field names are case-insensitive, so they are lower-cased here. A repeated name is refused: the
verifier and the origin could read different values.

Sources: "POST Object" in the Amazon S3 API reference; RFC 7578 for the body.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.model.errors import S3Error
from gateway.model.s3.sigv4 import WireRequest

MULTIPART = "multipart/form-data"
MOST_FIELD_BYTES = 20 * 1024
"""Names and values of all fields before the file, in bytes: S3's own limit."""
MOST_FIELDS = 100
_MOST_AFTER_FILE = 1024**2


def is_multipart(request: WireRequest) -> bool:
    """Whether any Content-Type of a request is that of a form; stores differ on which of several counts."""
    return any(
        name == b"content-type" and parse_options_header(value.decode("latin-1"))[0] == MULTIPART.encode()
        for name, value in request.headers
    )


class Form:
    """A form with its fields read, positioned at the file.

    ``fields`` are by lower-case name. ``filename`` is the file's name without directories, empty if it has none.
    """

    def __init__(self, boundary: bytes, body: AsyncIterator[bytes]) -> None:
        self.fields: dict[str, str] = {}
        self.filename = ""
        self._body = body
        self._at_file = self._after_file = self._ended = False
        self._header: list[bytearray] = [bytearray(), bytearray()]
        self._name = ""
        self._value = bytearray()
        self._before = self._after = 0
        self._pieces: list[bytes] = []
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._add_header(0, data[start:end]),
                "on_header_value": lambda data, start, end: self._add_header(1, data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": lambda data, start, end: self._add_data(data[start:end]),
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    @classmethod
    async def read(cls, request: WireRequest, body: AsyncIterator[bytes]) -> Form:
        """Read a form up to its file.

        Raises:
            S3Error: InvalidArgument, MalformedPOSTRequest, MaxPostPreDataLengthExceededError.
            ClientGone: the client left.
        """
        _, options = parse_options_header((request.fields.get(b"content-type") or b"").decode("latin-1"))
        try:
            form = cls(options.get(b"boundary", b""), body)
        except FormParserError:
            raise S3Error("MalformedPOSTRequest") from None
        if not options.get(b"boundary"):
            raise S3Error("MalformedPOSTRequest")
        async for piece in body:
            form._feed(piece)
            if form._at_file or form._after_file:
                return form
        form._require_end()
        extra = {"ArgumentName": "file", "ArgumentValue": "0"}
        raise S3Error("InvalidArgument", "POST requires exactly one file upload per request.", extra=extra)

    async def file(self) -> AsyncIterator[bytes]:
        """The bytes of the file, readable once.

        Raises:
            S3Error: MalformedPOSTRequest, the form ends before its last boundary.
            ClientGone: the client left.
        """
        while True:
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                yield piece
            if self._ended:
                return
            data = await anext(self._body, None)
            if data is None:
                break
            self._feed(data)
        self._require_end()

    def _feed(self, data: bytes) -> None:
        if self._after_file:
            self._after += len(data)
            if self._after > _MOST_AFTER_FILE:
                raise S3Error("MalformedPOSTRequest")
        try:
            self._parser.write(data)
        except (FormParserError, UnicodeDecodeError):
            raise S3Error("MalformedPOSTRequest") from None

    def _require_end(self) -> None:
        if not self._ended:
            raise S3Error("MalformedPOSTRequest")

    def _begin(self) -> None:
        self._name = ""
        self._value = bytearray()

    def _add_header(self, side: int, data: bytes) -> None:
        self._header[side] += data

    def _end_header(self) -> None:
        name, value = self._header
        self._header = [bytearray(), bytearray()]
        if bytes(name).lower() != b"content-disposition" or self._after_file:
            return
        options = parse_options_header(value.decode("latin-1"))[1]
        self._name = options.get(b"name", b"").decode("utf-8").lower()
        if self._name == "file":
            self.filename = options.get(b"filename", b"").decode("utf-8").replace("\\", "/").rpartition("/")[2]

    def _end_headers(self) -> None:
        if self._after_file:
            return
        if not self._name:
            raise S3Error("MalformedPOSTRequest")
        if self._name == "file":
            self._at_file = True
        else:
            self._count(len(self._name.encode()))

    def _add_data(self, data: bytes) -> None:
        if self._at_file:
            self._pieces.append(data)
        elif not self._after_file:
            self._count(len(data))
            self._value += data

    def _count(self, size: int) -> None:
        self._before += size
        if self._before > MOST_FIELD_BYTES or len(self.fields) >= MOST_FIELDS:
            raise S3Error("MaxPostPreDataLengthExceededError", extra={"MaxPostPreDataLength": str(MOST_FIELD_BYTES)})

    def _end_part(self) -> None:
        if self._at_file:
            self._at_file, self._after_file = False, True
        elif not self._after_file:
            if self._name in self.fields:
                raise S3Error("InvalidArgument", explain=f"The field {self._name[:64]!r} appears more than once.")
            self.fields[self._name] = self._value.decode("utf-8")

    def _end(self) -> None:
        self._ended = True

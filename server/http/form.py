"""Forms (multipart/form-data, RFC 7578) with one file, which is not held in memory."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from engine_core.refusal import RefusalError
from server.batches.state.stored_files import Upload
from server.errors import shortened
from server.http.body import check_encoding, incoming, length_of

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_MAX_FIELDS = 32
_MAX_FIELD_BYTES = 4096
_WRITTEN_AT_ONCE = 1 << 20


class Form:
    """A form: the file in the field `file_field` is uploaded, other fields are kept."""

    def __init__(self, file_field: str, upload: Upload) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._file_field, self._upload = file_field, upload
        self._unwritten: list[bytes] = []
        self._size = 0
        self._header = bytearray()
        self._value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._is_file = False
        self._whole = False

    async def read(self, request: Request, max_bytes: int) -> None:
        """Read it whole. It has the time of `max_bytes` if it does not tell its length. Raises
        RefusalError `invalid_request`, `unsupported_encoding`, `overloaded` or `body_timeout`,
        ClientLeftError, or what the upload raises."""
        check_encoding(request)
        parser = self._parser(request)
        async with incoming(request, length_of(request, max_bytes)) as account:
            async for part in request.stream():
                with _parsing():
                    parser.write(part)
                account.hold(self._size)
                if self._size >= _WRITTEN_AT_ONCE:
                    await self._flush()
                    account.hold(0)
        with _parsing():
            parser.finalize()
        await self._flush()
        if not self._whole:
            raise _fault("the form ends before its last boundary")

    def _parser(self, request: Request) -> MultipartParser:
        """Raises RefusalError."""
        with _parsing():
            kind, options = parse_options_header(request.headers.get("content-type", ""))
            boundary = options.get(b"boundary")
            if kind != b"multipart/form-data" or not boundary:
                raise _fault("the body is multipart/form-data with a boundary")
            return MultipartParser(boundary, self._callbacks())

    async def _flush(self) -> None:
        data, self._unwritten, self._size = b"".join(self._unwritten), [], 0
        await asyncio.to_thread(self._upload.write, data)

    def _callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._add_to_header,
            "on_header_value": self._add_to_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._begin_data,
            "on_part_data": self._add,
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        self._headers.clear()
        self._value.clear()

    def _add_to_header(self, data: bytes, start: int, end: int) -> None:
        self._header.extend(data[start:end])

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value.extend(data[start:end])

    def _end_header(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _begin_data(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = shortened(options.get(b"name", b"").decode(errors="replace"))
        filename = options.get(b"filename")
        self._is_file = self._name == self._file_field
        if self._is_file:
            if filename is None:
                raise _fault(f"{self._name}: is a file, with a filename", self._name)
            if self.filename is not None:
                raise _fault(f"{self._name}: is there twice", self._name)
            self.filename = filename.decode(errors="replace")
        elif len(self.fields) >= _MAX_FIELDS:
            raise _fault(f"a form has at most {_MAX_FIELDS} fields")

    def _add(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._unwritten.append(data[start:end])
            self._size += end - start
        elif len(self._value) + end - start > _MAX_FIELD_BYTES:
            raise _fault(f"{self._name}: at most {_MAX_FIELD_BYTES} bytes", self._name)
        else:
            self._add_to_value(data, start, end)

    def _end(self) -> None:
        if not self._is_file:
            self.fields[self._name] = self._value.decode(errors="replace")

    def _finish(self) -> None:
        self._whole = True


@contextmanager
def _parsing() -> Generator[None]:
    """Raise RefusalError for a form that the parser cannot read."""
    try:
        yield
    except ValueError as error:  # FormParserError and UnicodeError are some
        raise _fault(f"not a form: {error}") from None


def _fault(message: str, param: str | None = None) -> RefusalError:
    return RefusalError("invalid_request", message, param)

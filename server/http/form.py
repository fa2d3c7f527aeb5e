"""Forms (multipart/form-data, RFC 7578) with one file, which is not held in memory."""

from collections.abc import AsyncGenerator
from typing import BinaryIO, cast

from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from engine_core.refusal import RefusalError
from server.batches.state.stored_files import Upload
from server.errors import shortened
from server.http.body import check_encoding, incoming, length_of
from server.service.ledger import Account

_MAX_FIELDS = 32
_MAX_FIELD_BYTES = 4096


class Form(MultiPartParser):
    """A form: the file in the field `file_field` is uploaded as it comes, other fields are kept.

    A text in the place of the file is left out."""

    def __init__(self, request: Request, file_field: str, upload: Upload) -> None:
        super().__init__(
            request.headers,
            request.stream(),
            max_files=1,
            max_fields=_MAX_FIELDS,
            max_part_size=_MAX_FIELD_BYTES,
        )
        self._request, self._file_field, self._upload = request, file_field, upload
        self._is_whole = False
        self.fields: dict[str, str] = {}
        self.filename: str | None = None

    async def read(self, max_bytes: int) -> None:
        """Read it whole. It has the time of `max_bytes` if it does not tell its length. Raises
        RefusalError `invalid_request`, `unsupported_encoding`, `overloaded` or `body_timeout`,
        ClientLeftError, or what the upload raises."""
        check_encoding(self._request)
        try:
            async with incoming(self._request, length_of(self._request, max_bytes)) as account:
                self.stream = self._parts(account)
                form = await self.parse()
            if not self._is_whole:
                raise MultiPartException("it ends before its last boundary")
        except (MultiPartException, LookupError, ValueError) as error:
            message = f"the body is not a form (multipart/form-data): {error}"
            param = shortened(self._current_part.field_name) or None
            raise RefusalError("invalid_request", message, param) from None
        self.fields = {
            name: value
            for name, value in form.items()
            if isinstance(value, str) and name != self._file_field
        }

    async def _parts(self, account: Account) -> AsyncGenerator[bytes]:
        """The body. A part is held until it has been written."""
        async for part in self._request.stream():
            account.hold(len(part))
            yield part
            account.hold(0)

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        part = self._current_part
        if part.file is not None:
            if part.field_name != self._file_field:
                raise MultiPartException(f"the file is the field {self._file_field}")
            self.filename = part.file.filename
            part.file.file.close()
            part.file.file = cast("BinaryIO", self._upload)

    def on_part_end(self) -> None:
        """Keep a field. A file is not rewound."""
        if self._current_part.file is None:
            super().on_part_end()

    def on_end(self) -> None:
        """Note that the last boundary has come: starlette takes a form without it."""
        self._is_whole = True

"""A job from a file of requests to one of results in the same order, in OpenAI's batch format."""

import asyncio
import hashlib
import os
import zlib
from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from server.batches.answering import Answer, Backend, Line
from server.batches.result_log import InputError, JobIdentity, ResultLog, explained
from server.batches.results import Summary
from server.batches.state.disk import draft_of, sync_folder
from server.batches.state.stored_batches import BatchEndpoint
from server.errors import fault_of, quoted
from server.event_loop import first_error

BESIDE_BODY = 1 << 16
"""The most bytes of a line around its body."""

_ONLINE_FIELDS = ("stream", "timeout", "priority")

_FIRST_DEPTH, _DEPTHS, _GROWTH = 64, 40, 1.2
DEPTHS = tuple(round(_FIRST_DEPTH * _GROWTH**i) for i in range(_DEPTHS))
"""Lengths of the hashed prefixes of a prompt, in bytes of its JSON, up to 78,000."""

_SKIPPED_AT_ONCE = 1 << 20
SYNC_SECONDS = 1.0
_LINES, _BYTES = 1024, 32 << 20
"""The most lines, and bytes, that are sorted together."""
_BUFFER = 1 << 20

_RawLine = tuple[int, int, int, bytes]
"""A line's number from 1, offset and size in bytes, and its text, cut if it is too long."""


class LineError(msgspec.Struct, frozen=True):
    """Why a line is no request, or got no answer."""

    code: str
    message: str
    is_good: ClassVar[bool] = False


class LineRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for lines. With `endpoint`, no other `url` is allowed."""

    max_line_bytes: int
    endpoint: str | None = None


class _Given(msgspec.Struct):
    custom_id: str
    url: str
    body: Raw
    method: Literal["POST"]


class _Body(msgspec.Struct):
    model: object = None
    stream: object = None
    timeout: object = None
    priority: object = None


class _Named(msgspec.Struct):
    custom_id: str | None = None


class _Prompts(msgspec.Struct):
    messages: Raw = Raw()
    prompt: Raw = Raw()
    query: Raw = Raw()
    input: Raw = Raw()


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: Raw


class _Output(msgspec.Struct, frozen=True):
    id: str
    custom_id: str | None
    response: _Response | None
    error: LineError | None = None


class FileJob:
    """One job. Lines are read twice: once to find those that begin alike, then in that order.

    `open` and `run` it, `assemble` the output, then `remove` the log, or `close` it to go on later.
    """

    def __init__(
        self, source: Path, log: Path, *, rules: LineRules, options: Mapping[str, str]
    ) -> None:
        """`log` takes the results as they come. `options` name what results depend on besides
        `source`, such as the model: a job goes on only with equal ones."""
        self._source, self._log_path = source, log
        self._rules, self._options = rules, dict(options)
        self._opened = ExitStack()
        self.summary = Summary()
        self.model: str | None = None

    async def open(self, *, resume: bool) -> None:
        """Read the source, and begin or `resume` the log. Raises JobFileError."""
        await asyncio.to_thread(self._open, resume)

    def _open(self, resume: bool) -> None:
        with ExitStack() as opened:
            try:
                self._file = opened.enter_context(self._source.open("rb"))
                self._index = index = LineIndex(self._file, self._rules)
            except OSError as error:
                raise InputError(f"{self._source} cannot be read: {error.strerror}") from None
            self._order, self.model = index.order(), index.model
            self.summary.requests = len(index)
            identity = JobIdentity(
                input_digest=index.digest,
                input_bytes=index.num_bytes,
                lines=len(index),
                options=self._options,
            )
            log = ResultLog(self._log_path, identity, resume=resume)
            self._log = opened.enter_context(closing(log))
            for _, output in log.results():
                if output is not None:
                    self._count(read_output(output))
            self.summary.earlier = self.summary.done
            self._opened = opened.pop_all()

    async def run(self, backend: Backend) -> None:
        """Answer every line without a result. At the end, results are on the disk in any case.

        Raises JobStoppedError if `backend` is lost, JobFileError if the log cannot be written.
        """
        try:
            with first_error(Exception):
                async with asyncio.TaskGroup() as group:
                    syncing = group.create_task(self._keep_synced())
                    await backend.answer(
                        self._lines(), lambda line, got: self._add(line.index, line.custom_id, got)
                    )
                    syncing.cancel()
        finally:
            self._log.sync()

    def assemble(
        self, output: Path, errors: Path | None = None, unfinished: LineError | None = None
    ) -> None:
        """Write the results in the order of the lines, failures to `errors`, if that is given.

        Lines without a result get `unfinished`, or are left out. Each file is written as a whole or
        not at all. Raises JobFileError.
        """
        paths = [output] if errors is None else [output, errors]
        drafts = [draft_of(path) for path in paths]
        try:
            with explained(drafts[0], self._log.num_bytes), ExitStack() as opened:
                files = [opened.enter_context(draft.open("wb", _BUFFER)) for draft in drafts]
                for index, logged in self._log.results():
                    result = logged
                    if result is None and unfinished is not None:
                        result = self._output(index, custom_id_of(self._text(index)), unfinished)
                    if result is not None:
                        is_output = errors is None or read_output(result).is_good
                        files[0 if is_output else 1].write(result + b"\n")
                for file in files:
                    file.flush()
                    os.fsync(file.fileno())
            for draft, path in zip(drafts, paths, strict=True):
                draft.replace(path)
            sync_folder(output.parent)
        finally:
            for draft in drafts:
                draft.unlink(missing_ok=True)

    def remove(self) -> None:
        """Close the job and delete the log."""
        self.close()
        self._log_path.unlink()

    def close(self) -> None:
        """Close the job, if it is open, and keep the log."""
        self._opened.close()

    async def _keep_synced(self) -> None:
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            await asyncio.to_thread(self._log.sync)

    def _lines(self) -> Iterator[Line]:
        for window in _windows(self._unanswered()):
            yield from sorted(window, key=prompt_of)

    def _unanswered(self) -> Iterator[Line]:
        """Yield the requests without a result, in order. Other lines get an error."""
        for index in self._order.tolist():
            if self._log.has(index):
                continue
            line = self._read(index)
            if isinstance(line, Line):
                yield line
            else:
                self._add(index, custom_id_of(self._text(index)), line)

    def _read(self, index: int) -> Line | LineError:
        number, size = int(self._index.numbers[index]), int(self._index.sizes[index])
        most = self._rules.max_line_bytes
        if size > most:
            message = f"line {number}: {size:,} bytes; a line has at most {most:,}"
            return LineError("body_too_large", message)
        text = self._text(index)
        if self._index.repeated[index]:
            known = quoted(custom_id_of(text))
            message = f"line {number}: custom_id: {known} is that of an earlier request"
            return LineError("duplicate_custom_id", message)
        return read_line(index, number, text, self._rules)

    def _text(self, index: int) -> bytes:
        size = min(int(self._index.sizes[index]), self._rules.max_line_bytes)
        return os.pread(self._file.fileno(), size, int(self._index.offsets[index]))

    def _add(self, index: int, custom_id: str | None, outcome: Answer | LineError) -> None:
        self._log.add(index, self._output(index, custom_id, outcome))
        self._count(outcome)

    def _output(self, index: int, custom_id: str | None, outcome: Answer | LineError) -> bytes:
        return output_line(f"batch_req_{self._index.digest[:16]}{index:08x}", custom_id, outcome)

    def _count(self, outcome: Answer | LineError) -> None:
        self.summary.count(failed=not outcome.is_good)
        if isinstance(outcome, Answer) and outcome.is_good:
            self.summary.add_usage(outcome.body)


def _windows(lines: Iterable[Line]) -> Iterator[list[Line]]:
    window: list[Line] = []
    size = 0
    for line in lines:
        window.append(line)
        size += len(line.body)
        if len(window) == _LINES or size >= _BYTES:
            yield window
            window, size = [], 0
    yield window


class LineIndex:
    """All lines of a file but the blank ones, at 188 bytes each.

    `numbers` (from 1), `offsets` and `sizes` (in bytes) are int64[L]. `repeated`, bool[L], marks a
    `custom_id` that an earlier request has. `model` is the first that a request names.
    """

    def __init__(self, file: BinaryIO, rules: LineRules) -> None:
        """Read `file`. Only requests count for `repeated`. Raises OSError."""
        hashed = hashlib.blake2b(digest_size=16)
        self.numbers, self.offsets, self.sizes = array("q"), array("q"), array("q")
        self.model: str | None = None
        ids, self._hashes = array("Q"), array("I")
        for number, offset, size, text in _lines(file, rules.max_line_bytes, hashed.update):
            self.numbers.append(number)
            self.offsets.append(offset)
            self.sizes.append(size)
            request = read_line(0, number, text, rules)
            id_hash, hashes = 0, list[int]()
            if isinstance(request, Line):
                self.model = self.model or request.model
                id_hash, hashes = _hash_of(request.custom_id), _hashes(request)
            ids.append(id_hash)
            self._hashes.extend(hashes + [0] * (_DEPTHS - len(hashes)))
        self.digest = hashed.hexdigest()
        self.num_bytes = file.tell()
        self.repeated = _repeated(np.frombuffer(ids, np.uint64))

    def __len__(self) -> int:
        return len(self.offsets)

    def order(self) -> npt.NDArray[np.int64]:
        """Take the indices of all lines, int64[L], grouped by how they begin. Call it once."""
        hashes = np.frombuffer(self._hashes, np.uint32).reshape(-1, _DEPTHS)
        self._hashes = array("I")
        return np.lexsort(hashes.T[::-1])


def _hash_of(custom_id: str) -> int:
    """A hash, never 0: that stands for no id."""
    digest = hashlib.blake2b(custom_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest) or 1


def prompt_of(request: Line) -> bytes:
    """The JSON of a line's prompt, by which lines are sorted."""
    given = msgspec.json.decode(request.body, type=_Prompts)
    return bytes(given.messages or given.prompt or given.query or given.input)


def _hashes(request: Line) -> list[int]:
    """Hashes of the prompt's prefixes, one for each of DEPTHS. Equal ones by chance do no harm."""
    prompt = memoryview(prompt_of(request))
    hashed = zlib.crc32(request.url.encode())
    hashes: list[int] = []
    for start, end in pairwise((0, *DEPTHS)):
        if end > len(prompt):
            break
        hashed = zlib.crc32(prompt[start:end], hashed)
        hashes.append(hashed)
    return hashes


def _repeated(ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Mark the ids that stand in `ids` before, bool[L]. 0 is no id."""
    _, first = np.unique(ids, return_index=True)
    repeated = ids != 0
    repeated[first] = False
    return repeated


def _lines(file: BinaryIO, most: int, seen: Callable[[bytes], object]) -> Iterator[_RawLine]:
    """Yield the lines that are not blank, without a byte order mark. `seen` gets every byte."""
    number = offset = 0
    while text := file.readline(most + 1):
        seen(text)
        number += 1
        size = len(text)
        ended = text.endswith(b"\n") or size <= most
        while not ended and (part := file.readline(_SKIPPED_AT_ONCE)):
            seen(part)
            size += len(part)
            ended = part.endswith(b"\n")
        skipped = len(BOM_UTF8) if number == 1 and text.startswith(BOM_UTF8) else 0
        if text[skipped:].strip():
            yield number, offset + skipped, size - skipped, text[skipped:]
        offset += size


def read_line(index: int, number: int, text: bytes, rules: LineRules) -> Line | LineError:
    """The request in line `number` of a file, or why there is none."""
    try:
        # msgspec checks the strings that it keeps; a line is UTF-8 as a whole or not at all.
        given = msgspec.json.decode(text.decode(), type=_Given)
        body = msgspec.json.decode(given.body, type=_Body)
    except msgspec.ValidationError as error:
        fault = fault_of(error)
        subject = f"{fault.path}: " if fault.path else "a line and its body are objects: "
        return LineError("invalid_request", f"line {number}: {subject}{fault.reason}")
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        return LineError("invalid_json_line", f"line {number}: not JSON: {error}")
    endpoints = get_args(BatchEndpoint) if rules.endpoint is None else (rules.endpoint,)
    if given.url not in endpoints:
        known = ", ".join(endpoints)
        message = f"line {number}: url: {quoted(given.url)} is not one of {known}"
        return LineError("invalid_url", message)
    for field in _ONLINE_FIELDS:
        if getattr(body, field) not in (None, False):
            message = f"line {number}: {field}: is for requests that someone waits for"
            return LineError("invalid_request", message)
    model = body.model if isinstance(body.model, str) else None
    return Line(index, given.custom_id, given.url, bytes(given.body), model)


def custom_id_of(text: bytes) -> str | None:
    """The `custom_id` of a line, None if it cannot be read."""
    try:
        return msgspec.json.decode(text, type=_Named).custom_id
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def output_line(batch_id: str, custom_id: str | None, outcome: Answer | LineError) -> bytes:
    """A line of the output, without its end."""
    if isinstance(outcome, LineError):
        return msgspec.json.encode(_Output(batch_id, custom_id, None, outcome))
    response = _Response(outcome.status, outcome.request_id, Raw(outcome.body))
    return msgspec.json.encode(_Output(batch_id, custom_id, response))


def read_output(line: bytes) -> Answer | LineError:
    """The outcome in a line that `output_line` has made."""
    output = msgspec.json.decode(line, type=_Output)
    if output.error is not None:
        return output.error
    assert output.response is not None, "an output line has a response or an error"
    response = output.response
    return Answer(response.status_code, response.request_id, bytes(response.body))

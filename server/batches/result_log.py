"""A file of a job's results as they come, from which a killed job goes on."""

import hashlib
import os
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Raw

from server.batches.state.disk import NO_ROOM, sync_folder
from server.errors import CommandError

_NONE = -1


class JobFileError(CommandError):
    """A file of the job cannot be used. The message is one line with the reason."""


class InputError(JobFileError):
    """The file of requests cannot be read."""


class NoRoomError(JobFileError):
    """There is no room for about `num_bytes` that a file of the job still needs."""

    def __init__(self, message: str, num_bytes: int) -> None:
        super().__init__(message)
        self.num_bytes = num_bytes


class JobIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The input that results belong to, and the other `options` that they depend on."""

    input_digest: str
    input_bytes: int
    lines: int
    options: dict[str, str]

    def difference(self, other: "JobIdentity") -> str | None:
        """How the earlier job `other` differs from this one, None if it does not."""
        if self.input_digest != other.input_digest:
            return "the input has changed"
        for name in sorted(self.options.keys() | other.options.keys()):
            own, theirs = self.options.get(name, "not given"), other.options.get(name, "not given")
            if own != theirs:
                return f"{name} is {own}, and was {theirs}"
        return None


class _Record(msgspec.Struct, frozen=True):
    index: int
    digest: str
    result: Raw


class ResultLog:
    """A line with the job's identity, then a record for each result, with its index and a digest.

    The digest covers the identity, too. A killed job loses what came since the last `sync`. Reading
    back ends at a torn record.
    """

    def __init__(self, path: Path, identity: JobIdentity, *, resume: bool) -> None:
        """Begin a file, or with `resume` go on with one that exists.

        Raises JobFileError if the file cannot be written, is another job's, or exists without
        `resume`. Without room, this and all other writes raise NoRoomError.
        """
        if path.exists() and not resume:
            raise JobFileError(
                f"{path} has results of an earlier run: --resume goes on from there, or delete it"
            )
        self.path, self.identity = path, identity
        self._seed = hashlib.blake2b(msgspec.json.encode(identity), digest_size=8)
        self._offsets = np.full(identity.lines, _NONE, np.int64)  # of each result, in the file
        self._sizes = np.zeros(identity.lines, np.int64)
        self._unsynced: list[bytes] = []
        self._syncing = threading.Lock()
        self._end = self._synced = 0
        with explained(path, identity.input_bytes):
            self._file = FileIO(path, "r+" if path.exists() else "x+")
        try:
            self._read_back()
        except BaseException:
            self._file.close()
            raise

    def add(self, index: int, result: bytes) -> None:
        """Add the first result of a request, JSON in one line."""
        prefix = b'{"index":%d,"digest":"%s","result":' % (index, self._digest(index, result))
        self._note(index, len(prefix), result)
        record = prefix + result + b"}\n"
        self._unsynced.append(record)
        self._end += len(record)

    def has(self, index: int) -> bool:
        return bool(self._offsets[index] != _NONE)

    def sync(self) -> None:
        """Write new records to the disk. May run in a thread beside `add`. Raises JobFileError."""
        with self._syncing:
            count = len(self._unsynced)
            data = b"".join(self._unsynced[:count])
            done = max(1, int(np.count_nonzero(self._sizes)))
            missing = self.num_bytes // done * (len(self._sizes) - done)
            with explained(self.path, len(data) + missing):
                try:
                    _write(self._file, data)
                    os.fsync(self._file.fileno())
                except OSError:
                    self._file.truncate(self._synced)
                    self._file.seek(self._synced)
                    raise
            self._synced += len(data)
            del self._unsynced[:count]

    def results(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield each request's index and result, or None, in order. Call `sync` before."""
        descriptor = self._file.fileno()
        for index, (offset, size) in enumerate(zip(self._offsets, self._sizes, strict=True)):
            if offset == _NONE:
                yield index, None
            else:
                yield index, os.pread(descriptor, int(size), int(offset))

    def close(self) -> None:
        self._file.close()

    @property
    def num_bytes(self) -> int:
        return int(self._sizes.sum())

    def _note(self, index: int, prefix: int, result: bytes | Raw) -> None:
        self._offsets[index], self._sizes[index] = self._end + prefix, len(memoryview(result))

    def _digest(self, index: int, result: bytes | Raw) -> bytes:
        digest = self._seed.copy()
        digest.update(b"%d:" % index)
        digest.update(result)
        return digest.hexdigest().encode()

    def _read_back(self) -> None:
        with self.path.open("rb") as reading:
            head = reading.readline()
            if head.endswith(b"\n"):
                self._check(head)
                self._end = len(head)
                self._read_records(reading)
        self._synced = self._end
        self._file.truncate(self._end)
        self._file.seek(self._end)
        if not self._end:  # new, or killed before its first sync
            self._unsynced.append(msgspec.json.encode(self.identity) + b"\n")
            self._end = len(self._unsynced[0])
            self.sync()
            sync_folder(self.path.parent)

    def _check(self, head: bytes) -> None:
        try:
            difference = self.identity.difference(msgspec.json.decode(head, type=JobIdentity))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise JobFileError(f"{self.path} is no file of results of a batch") from None
        if difference is not None:
            raise JobFileError(f"{self.path} is of another job: {difference}")

    def _read_records(self, reading: Iterable[bytes]) -> None:
        """Note the first record of each request, up to one that is torn."""
        for text in reading:
            try:
                record = msgspec.json.decode(text, type=_Record)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return
            known = record.digest.encode() == self._digest(record.index, record.result)
            if not known or not text.endswith(b"\n") or not 0 <= record.index < len(self._offsets):
                return
            if not self.has(record.index):
                prefix = len(text) - 2 - len(memoryview(record.result))
                self._note(record.index, prefix, record.result)
            self._end += len(text)


@contextmanager
def explained(path: Path, num_bytes: int) -> Generator[None]:
    """Turn failures to write `path`, or `num_bytes` to it, into JobFileError or NoRoomError."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise JobFileError(f"{path} cannot be written: {error.strerror}") from None
        needed = f"{path}: {error.strerror}: about {num_bytes:,} more bytes are needed"
        raise NoRoomError(needed, num_bytes) from None


def _write(file: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]

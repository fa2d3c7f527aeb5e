"""The results of a job as they come, in a file that a killed job goes on from."""

import hashlib
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Raw

from server.batches.state.disk import NO_ROOM, sync_folder

_NONE = -1


class JobFileError(Exception):
    """A file of the job cannot be used; one line says which, and why."""


class NoRoomError(JobFileError):
    """A file of the job needs `num_bytes` more, about, and there is no room for them."""

    def __init__(self, message: str, num_bytes: int) -> None:
        super().__init__(message)
        self.num_bytes = num_bytes


class JobIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What results belong to: the input's digest, size in bytes and lines, and whatever else they
    depend on, such as the model."""

    input_digest: str
    input_bytes: int
    lines: int
    options: dict[str, str]

    def difference(self, other: "JobIdentity") -> str | None:
        """How an earlier job, `other`, was another one than this. None: it was the same."""
        if self.input_digest != other.input_digest:
            return (
                f"the input has changed: it has {self.lines:,} lines ({self.input_bytes:,} bytes), "
                f"and had {other.lines:,} ({other.input_bytes:,} bytes)"
            )
        for name in sorted(self.options.keys() | other.options.keys()):
            own, theirs = self.options.get(name, "not given"), other.options.get(name, "not given")
            if own != theirs:
                return f"{name} is {own}, and was {theirs}"
        return None


class _Record(msgspec.Struct, frozen=True):
    index: int
    digest: str
    result: Raw


_encode = msgspec.json.Encoder().encode
_identity = msgspec.json.Decoder(JobIdentity)
_record = msgspec.json.Decoder(_Record)


class ResultLog:
    """A line with the job's identity, and then one for each result, with the index of its request
    and a digest of both and of the identity.

    Records are kept in memory until `sync`, so that a job that is killed loses what came since the
    last one. A record that is torn ends what is read back.
    """

    def __init__(
        self,
        path: Path,
        identity: JobIdentity,
        resumed: Callable[[int, bytes], None] | None = None,
    ) -> None:
        """Begin a file; with `resumed` go on with it if it is there: that gets the index and the
        result of every record in it.

        Raises JobFileError if it cannot be written, or is another job's, or there and not to be
        resumed; where there is no room NoRoomError, as everything here that writes.
        """
        if resumed is None and path.exists():
            raise JobFileError(
                f"{path} has results of an earlier run: --resume goes on from there, or delete it"
            )
        self.path, self.identity = path, identity
        self._seed = hashlib.blake2b(_encode(identity), digest_size=8)
        self._offsets = np.full(identity.lines, _NONE, np.int64)  # of each result, in the file
        self._sizes = np.zeros(identity.lines, np.int64)
        self._unsynced: list[bytes] = []
        self._syncing = threading.Lock()
        self._end = self._synced = 0
        with explained(path, identity.input_bytes):
            self._file = FileIO(path, "r+" if path.exists() else "x+")
        try:
            self._read_back(resumed)
        except BaseException:
            self._file.close()
            raise

    def add(self, index: int, result: bytes) -> None:
        """The result of a request (JSON in one line), which has none yet."""
        prefix = b'{"index":%d,"digest":"%s","result":' % (index, self._digest(index, result))
        self._note(index, len(prefix), result)
        record = prefix + result + b"}\n"
        self._unsynced.append(record)
        self._end += len(record)

    def has(self, index: int) -> bool:
        """Whether the request has its result."""
        return bool(self._offsets[index] != _NONE)

    def sync(self) -> None:
        """Write what has come to the disk; may run in a thread beside `add`. Raises JobFileError if
        there is no room."""
        with self._syncing:
            count = len(self._unsynced)
            data = b"".join(self._unsynced[:count])
            with explained(self.path, len(data) + self._expected_bytes()):
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
        """The index and the result of every request, in order; None where there is none. All must
        have been synced."""
        descriptor = self._file.fileno()
        for index, (offset, size) in enumerate(zip(self._offsets, self._sizes, strict=True)):
            if offset == _NONE:
                yield index, None
            else:
                yield index, os.pread(descriptor, int(size), int(offset))

    def remove(self) -> None:
        """The results are elsewhere now."""
        self.close()
        self.path.unlink()

    def close(self) -> None:
        """Leave the file for later."""
        self._file.close()

    @property
    def num_bytes(self) -> int:
        """The results so far."""
        return int(self._sizes.sum())

    def _expected_bytes(self) -> int:
        """The results that have not come, if they are like those that have."""
        done = int(np.count_nonzero(self._sizes))
        left = len(self._sizes) - done
        return self.num_bytes // done * left if done else 0

    def _note(self, index: int, prefix: int, result: bytes | Raw) -> None:
        """The result will be `prefix` bytes behind the present end."""
        self._offsets[index], self._sizes[index] = self._end + prefix, len(memoryview(result))

    def _digest(self, index: int, result: bytes | Raw) -> bytes:
        digest = self._seed.copy()
        digest.update(b"%d:" % index)
        digest.update(result)
        return digest.hexdigest().encode()

    def _read_back(self, resumed: Callable[[int, bytes], None] | None) -> None:
        with self.path.open("rb") as reading:
            head = reading.readline()
            if head.endswith(b"\n"):
                self._check(head)
                self._end = len(head)
                for record in self._records(reading):
                    if resumed is not None:
                        resumed(record.index, bytes(record.result))
        self._synced = self._end
        self._file.truncate(self._end)
        self._file.seek(self._end)
        if not self._end:  # new, or killed before its first sync
            self._unsynced.append(_encode(self.identity) + b"\n")
            self._end = len(self._unsynced[0])
            self.sync()
            sync_folder(self.path.parent)

    def _check(self, head: bytes) -> None:
        try:
            difference = self.identity.difference(_identity.decode(head))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise JobFileError(f"{self.path} is no file of results of a batch") from None
        if difference is not None:
            raise JobFileError(f"{self.path} is of another job: {difference}")

    def _records(self, reading: Iterable[bytes]) -> Iterator[_Record]:
        """Up to the first that is torn; a request has one result, the first."""
        for text in reading:
            try:
                record = _record.decode(text)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return
            known = record.digest.encode() == self._digest(record.index, record.result)
            if not known or not text.endswith(b"\n") or not 0 <= record.index < len(self._offsets):
                return
            if not self.has(record.index):
                prefix = len(text) - 2 - len(memoryview(record.result))
                self._note(record.index, prefix, record.result)
                yield record
            self._end += len(text)


@contextmanager
def explained(path: Path, num_bytes: int) -> Generator[None]:
    """Failures to write so many bytes to `path` become JobFileError, or NoRoomError of these."""
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

"""The first pass over a file of requests: where its lines are, and which of them begin alike."""

import hashlib
import zlib
from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from server.batch_files.batch_lines import LineRules, read_line
from server.batches.answering import Line

_FIRST_DEPTH, _DEPTHS, _GROWTH = 64, 40, 1.2
DEPTHS = tuple(round(_FIRST_DEPTH * _GROWTH**i) for i in range(_DEPTHS))
"""Where the beginnings of a prompt are hashed, in bytes of its JSON: up to 78,000, in steps that
are a fifth of the depth. Prompts that share a beginning differ at most so much deeper."""

_SKIPPED_AT_ONCE = 1 << 20


class _Prompts(msgspec.Struct):
    messages: Raw = Raw()
    prompt: Raw = Raw()
    query: Raw = Raw()


_prompts = msgspec.json.Decoder(_Prompts)


class RawLine(NamedTuple):
    """A line as it stands in the file: its number from 1, where it begins and its size in bytes,
    and its text, of a line that is too long only the beginning."""

    number: int
    offset: int
    size: int
    text: bytes


class LineIndex:
    """All lines of a file but the blank ones, at 188 bytes each.

    numbers    int64[L], from 1
    offsets    int64[L], in bytes
    sizes      int64[L], in bytes
    repeated   bool[L], its `custom_id` is that of an earlier request
    model      of the first request that names one
    digest     of the whole file
    num_bytes  of the whole file
    """

    def __init__(self, file: BinaryIO, rules: LineRules) -> None:
        """Reads all of `file`, of which one line at a time is in memory. A line that is no request
        takes its `custom_id` from no other. Raises OSError."""
        hashed = hashlib.blake2b(digest_size=16)
        self.numbers, self.offsets, self.sizes = array("q"), array("q"), array("q")
        self.model: str | None = None
        ids, self._hashes = array("Q"), array("I")
        for raw in _lines(file, rules.max_line_bytes, hashed.update):
            self.numbers.append(raw.number)
            self.offsets.append(raw.offset)
            self.sizes.append(raw.size)
            request = read_line(0, raw.number, raw.text, rules)
            hashes: list[int] = []
            if isinstance(request, Line):
                self.model = self.model or request.model
                hashes = _hashes(request)
            ids.append(_hash_of(request.custom_id) if isinstance(request, Line) else 0)
            self._hashes.extend(hashes + [0] * (_DEPTHS - len(hashes)))
        self.digest = hashed.hexdigest()
        self.num_bytes = file.tell()
        self.repeated = _repeated(np.frombuffer(ids, np.uint64))

    def __len__(self) -> int:
        return len(self.offsets)

    def order(self) -> npt.NDArray[np.int64]:
        """The indices of all lines, int64[L]: those that begin alike, one after another. The hashes
        are forgotten."""
        hashes = np.frombuffer(self._hashes, np.uint32).reshape(-1, _DEPTHS)
        self._hashes = array("I")
        used = hashes[:, hashes.any(axis=0)]
        return np.lexsort(used.T[::-1]) if used.size else np.arange(len(hashes))


def _hash_of(custom_id: str) -> int:
    """Not 0, which is for none."""
    digest = hashlib.blake2b(custom_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest) or 1


def prompt_of(request: Line) -> bytes:
    """What lines are sorted by: the text of its prompt, in JSON."""
    given = _prompts.decode(request.body)
    return bytes(given.messages or given.prompt or given.query)


def _hashes(request: Line) -> list[int]:
    """Hashes of what its prompt begins with, each of everything up to its depth. Two that are equal
    by chance only put lines side by side."""
    prompt = memoryview(prompt_of(request))
    hashed = zlib.crc32(request.url.encode())
    hashes: list[int] = []
    start = 0
    for end in DEPTHS:
        if end > len(prompt):
            break
        hashed = zlib.crc32(prompt[start:end], hashed)
        hashes.append(hashed)
        start = end
    return hashes


def _repeated(ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Which of `ids` are there before, bool[L]; 0 is none."""
    _, first = np.unique(ids, return_index=True)
    repeated = ids != 0
    repeated[first] = False
    return repeated


def _lines(file: BinaryIO, most: int, seen: Callable[[bytes], object]) -> Iterator[RawLine]:
    """The lines that are not blank, without a byte order mark; `seen` gets every byte."""
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
            yield RawLine(number, offset + skipped, size - skipped, text[skipped:])
        offset += size

"""The first pass over a file of requests: where its lines are, and which of them begin alike."""

import hashlib
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

_FIRST_DEPTH, _DEPTHS, _GROWTH = 64, 40, 1.2
DEPTHS = tuple(round(_FIRST_DEPTH * _GROWTH**i) for i in range(_DEPTHS))
"""Where the beginnings of a prompt are hashed, in bytes of its JSON: up to 78,000, in steps that
are a fifth of the depth. Prompts that share a beginning differ at most so much deeper."""

_BLOCK = 1 << 14
_SKIPPED_AT_ONCE = 1 << 20
_PROMPTS = ("messages", "prompt", "query")


class _Keyed(msgspec.Struct):
    custom_id: str | None = None
    url: str = ""
    body: Raw = Raw()


class _Prompts(msgspec.Struct):
    messages: Raw = Raw()
    prompt: Raw = Raw()
    query: Raw = Raw()


_keyed = msgspec.json.Decoder(_Keyed)
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
    digest     of the whole file
    num_bytes  of the whole file
    """

    def __init__(
        self, file: BinaryIO, max_line_bytes: int, is_request: Callable[[RawLine], bool]
    ) -> None:
        """Reads all of `file`, of which one line at a time is in memory. A line that is no request
        takes its `custom_id` from no other. Raises OSError."""
        hashed = hashlib.blake2b(digest_size=16)
        blocks = [_Block()]
        for line in _lines(file, max_line_bytes, hashed.update):
            if blocks[-1].count == _BLOCK:
                blocks.append(_Block())
            blocks[-1].add(line, takes_id=is_request(line))
        self.digest = hashed.hexdigest()
        self.num_bytes = file.tell()
        self.numbers = np.concatenate([block.numbers[: block.count] for block in blocks])
        self.offsets = np.concatenate([block.offsets[: block.count] for block in blocks])
        self.sizes = np.concatenate([block.sizes[: block.count] for block in blocks])
        ids = np.concatenate([block.ids[: block.count] for block in blocks])
        self.repeated = _repeated(ids)
        self._blocks = blocks

    def __len__(self) -> int:
        return len(self.offsets)

    def order(self) -> npt.NDArray[np.int64]:
        """The indices of all lines, int64[L]: those that begin alike, one after another. The hashes
        are forgotten."""
        blocks, self._blocks = self._blocks, []
        deepest = max(block.deepest for block in blocks)
        hashes = np.concatenate([block.hashes[: block.count, :deepest] for block in blocks])
        if not deepest:
            return np.arange(len(hashes))
        return np.lexsort(hashes.T[::-1])


class _Block:
    """Arrays for some of the lines, of which `count` are there. `ids` uint64 are hashes of their
    `custom_id`, 0 for none; `hashes` uint32[BLOCK, DEPTHS] are chained, 0 beyond the prompt's
    end."""

    def __init__(self) -> None:
        self.count = self.deepest = 0
        self.numbers = np.zeros(_BLOCK, np.int64)
        self.offsets = np.zeros(_BLOCK, np.int64)
        self.sizes = np.zeros(_BLOCK, np.int64)
        self.ids = np.zeros(_BLOCK, np.uint64)
        self.hashes = np.zeros((_BLOCK, _DEPTHS), np.uint32)

    def add(self, line: RawLine, *, takes_id: bool) -> None:
        at = self.count
        self.numbers[at], self.offsets[at], self.sizes[at], text = line
        custom_id, hashes = _keys(text)
        if takes_id and custom_id is not None:
            digest = hashlib.blake2b(custom_id.encode(), digest_size=8).digest()
            self.ids[at] = int.from_bytes(digest) or 1
        if hashes:
            self.hashes[at, : len(hashes)] = hashes
            self.deepest = max(self.deepest, len(hashes))
        self.count += 1


def _keys(text: bytes) -> tuple[str | None, list[int]]:
    """A line's `custom_id`, and the hashes of what its prompt begins with. A line that cannot be
    read has none."""
    try:
        given = _keyed.decode(text)
        if not given.body:
            return given.custom_id, []
        prompts = _prompts.decode(given.body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None, []
    prompt = next((own for name in _PROMPTS if (own := getattr(prompts, name))), Raw())
    return given.custom_id, _chained_hashes(memoryview(prompt), zlib.crc32(given.url.encode()))


def _chained_hashes(prompt: memoryview, before: int) -> list[int]:
    """Each is that of everything up to its depth. Two that are equal by chance only put lines side
    by side: what they share is found exactly, later."""
    hashes: list[int] = []
    start = 0
    for end in DEPTHS:
        if end > len(prompt):
            break
        before = zlib.crc32(prompt[start:end], before)
        hashes.append(before)
        start = end
    return hashes


def _repeated(ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Which of `ids` are there before, bool[L]; 0 is none."""
    _, first = np.unique(ids, return_index=True)
    repeated = np.ones(len(ids), bool)
    repeated[first] = False
    repeated[ids == 0] = False
    return repeated


def _lines(file: BinaryIO, most: int, seen: Callable[[bytes], object]) -> Iterator[RawLine]:
    """The lines that are not blank, without a byte order mark; `seen` gets every byte."""
    number = offset = 0
    while text := file.readline(most + 1):
        seen(text)
        number += 1
        size = len(text)
        if size > most and not text.endswith(b"\n"):
            size += _skip_rest(file, seen)
        skipped = len(BOM_UTF8) if number == 1 and text.startswith(BOM_UTF8) else 0
        if text[skipped:].strip():
            yield RawLine(number, offset + skipped, size - skipped, text[skipped:])
        offset += size


def _skip_rest(file: BinaryIO, seen: Callable[[bytes], object]) -> int:
    """Read to the end of a line; how many bytes that was."""
    size = 0
    while part := file.readline(_SKIPPED_AT_ONCE):
        seen(part)
        size += len(part)
        if part.endswith(b"\n"):
            break
    return size

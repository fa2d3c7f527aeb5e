"""Vectors that one API process keeps for texts that come again."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, NamedTuple

_ENTRY_BYTES: Final = 400
"""What an entry takes beside its numbers: objects, digest, place in the order."""


class KnownVector(NamedTuple):
    """An item's vector or logits float32[D], its tokens, and how many were cut off."""

    values: bytes
    tokens: int
    dropped: int


class VectorCache:
    """Vectors by the digest of all that they depend on. The least recently used go first."""

    def __init__(self, max_bytes: int) -> None:
        """With 0 bytes it keeps nothing."""
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._known: OrderedDict[Hashable, KnownVector] = OrderedDict()

    def get(self, key: Hashable) -> KnownVector | None:
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
        return known

    def put(self, key: Hashable, known: KnownVector) -> None:
        if key not in self._known:
            self._known[key] = known
            self.num_bytes += _ENTRY_BYTES + len(known.values)
        while self.num_bytes > self.max_bytes:
            _, oldest = self._known.popitem(last=False)
            self.num_bytes -= _ENTRY_BYTES + len(oldest.values)

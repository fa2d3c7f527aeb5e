"""The items of a request whose vectors are to be computed: each once, and none that is cached."""

import hashlib
from collections.abc import Hashable, Sequence
from typing import Final

import msgspec
import numpy as np

from engine_core.client.pending_jobs import Encoded
from engine_core.messages import JobOptions
from server.service.inputs import Items
from server.service.vector_cache import KnownVector, VectorCache

_DIGEST_BYTES: Final = 16


def plain_keys(items: Items, query: str | list[str] | None) -> Sequence[Hashable]:
    """A key for each item, the same for the same item of one request."""
    keys = items.texts or items.ids
    return list(zip(query, keys, strict=False)) if isinstance(query, list) else keys


def digests(
    model: str,
    options: JobOptions,
    query: str | None,
    instruction: str | None,
    keys: Sequence[Hashable],
) -> Sequence[Hashable]:
    """The digests of all on which the items' vectors depend, and of who may share them.

    Beside its key that is the same for each item. `options` have the salt of the API key."""
    shared = (model, options.cache_salt, options.tokenization, query, instruction)
    base = hashlib.blake2b(msgspec.msgpack.encode(shared), digest_size=_DIGEST_BYTES)
    found: list[bytes] = []
    for key in keys:
        own = base.copy()
        own.update(msgspec.msgpack.encode(key))
        found.append(own.digest())
    return found


class DistinctItems:
    """The `items` of a request that have a vector to be computed, and the answer with all."""

    def __init__(
        self,
        items: Items,
        query: str | list[str] | None,
        keys: Sequence[Hashable],
        cache: VectorCache,
    ) -> None:
        """`keys` are those of the items."""
        rows: dict[Hashable, int] = {}
        self._row_of = np.array([rows.setdefault(key, len(rows)) for key in keys])
        firsts = np.unique(self._row_of, return_index=True)[1].tolist()
        self._keys, self._cache = list(rows), cache
        self._known = [cache.get(key) for key in rows]
        self._missing = [row for row, known in enumerate(self._known) if known is None]
        self.num_known = int(np.isin(self._row_of, self._missing, invert=True).sum())
        """Items whose vector was cached."""
        places = [firsts[row] for row in self._missing]
        self.items = Items(
            [items.texts[place] for place in places] if items.texts else [],
            [items.ids[place] for place in places] if items.ids else [],
            lambda row: items.name(places[row]),
        )
        self.query: str | list[str] | None = query
        if isinstance(query, list):
            self.query = [query[place] for place in places]

    def completed(self, computed: Encoded | None) -> Encoded:
        """The answer for all items, from that for `items` if there are any. It is cached."""
        if computed is not None:
            dropped = computed.dropped or [0] * len(self._missing)
            for place, row in enumerate(self._missing):
                values = computed.values[place].tobytes()
                known = KnownVector(values, computed.prompt_tokens[place], dropped[place])
                self._known[row] = known
                self._cache.put(self._keys[row], known)
        known = [own for own in self._known if own is not None]
        values = np.stack([np.frombuffer(own.values, np.float32) for own in known])
        lens, cut = np.array([(own.tokens, own.dropped) for own in known], np.int32).T
        return Encoded(
            values=values[self._row_of],
            prompt_tokens=lens[self._row_of].tolist(),
            dropped=cut[self._row_of].tolist() if cut.any() else [],
            timing=computed and computed.timing,
        )

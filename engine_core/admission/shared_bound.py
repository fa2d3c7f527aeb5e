"""A bound on rows and tokens in flight that neither one request nor one API key takes whole.

A request counts an eighth of each at most, however large it is, and all large ones together leave
an eighth to small ones. An API key, where there are several, has half of each at most.
"""

from dataclasses import dataclass

_REQUESTS_AT_LEAST, _KEYS_AT_LEAST = 8, 2
_SMALL = 64
"""A request is small that counts at most this part."""


@dataclass(slots=True)
class InFlight:
    """How many requests there are, and what they count."""

    requests: int = 0
    rows: int = 0
    tokens: int = 0


class SharedBound:
    """`all` is what is in flight. Keys are numbers, 0 where there are no others."""

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self.max_rows, self.max_tokens = max_rows, max_tokens
        self.rows_of_one = max(1, max_rows // _REQUESTS_AT_LEAST)
        """The most that one request counts."""
        self._tokens_of_one = max_tokens // _REQUESTS_AT_LEAST
        self.all = InFlight()
        self._keys: dict[int, InFlight] = {}

    def share(self, rows: int, tokens: int, sent: int = 0) -> tuple[int, int]:
        """What a request of so many rows and tokens counts; `sent` of them are held as they came,
        until they are tokenized."""
        if rows <= self.rows_of_one and tokens <= self._tokens_of_one:
            return rows, tokens
        return min(rows, self.rows_of_one), min(tokens, max(sent, self._tokens_of_one))

    def fits(self, rows: int, tokens: int) -> bool:
        """There is room for a request that counts so much."""
        large = rows * _SMALL > self.max_rows or tokens * _SMALL > self.max_tokens
        part = 1 - 1 / _REQUESTS_AT_LEAST if large and self.all.requests else 1.0
        return self._is_within(part, self.all, rows, tokens)

    def fits_key(self, key: int, rows: int, tokens: int) -> bool:
        """Its key has room for it; for its first one whatever its size, which would never fit
        better."""
        own = self._keys.get(key)
        return own is None or self._is_within(1 / _KEYS_AT_LEAST, own, rows, tokens)

    def move(self, key: int, requests: int, rows: int, tokens: int) -> None:
        """So much more of a key is in flight, or less."""
        held = self.all
        held.requests += requests
        held.rows += rows
        held.tokens += tokens
        if key:
            self._move_key(key, requests, rows, tokens)

    def _move_key(self, key: int, requests: int, rows: int, tokens: int) -> None:
        own = self._keys.setdefault(key, InFlight())
        own.requests += requests
        own.rows += rows
        own.tokens += tokens
        if not own.requests:
            del self._keys[key]

    def _is_within(self, part: float, held: InFlight, rows: int, tokens: int) -> bool:
        return (
            held.rows + rows <= self.max_rows * part
            and held.tokens + tokens <= self.max_tokens * part
        )

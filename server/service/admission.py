"""Limits on what is in flight in one API process: whole requests are admitted, each is released
exactly once.

Each model has a pool of its own. A request counts an eighth of its rows and tokens at most, as in
the engine (`engine_core/admission/budget.py`), and large ones leave an eighth to small ones. Rows
are given back as the engine ends them, whether their text is read or not. An API key, where there
are several, counts half of a pool at most.

Every 429 (code `overloaded`) comes from one of these:
- here: too many requests, rows or tokens in this API process (`--max-requests` and its like)
- `server/templates/render_queue.py`: too many conversations wait for one model's chat template
- `engine_core/admission/budget.py`: too many rows or tokens in the engine, from all API processes
- `engine_core/admission/queue_bound.py`: the expected wait in the engine's queue is too long;
  `engine_core/client/circuit_breaker.py` repeats that refusal without asking the engine
- `engine_core/structured/compiler_threads.py`: too many grammars are being compiled
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import msgspec

from server.errors import APIError
from server.settings.server_config import Limits

_REQUESTS_AT_LEAST, _OF_A_KEY = 8, 1 / 2
_SMALL = 64
"""A request is small that counts at most this part of a limit."""


def limits_per_process(limits: Limits, processes: int) -> Limits:
    """The limits of one of several API processes: an equal share, but room for one request of the
    largest size at least."""
    most_rows = max(limits.max_inputs, limits.max_documents, limits.max_n)

    def divided(total: int, one_request: int) -> int:
        return min(total, max(total // processes, one_request))

    return msgspec.structs.replace(
        limits,
        max_requests=divided(limits.max_requests, 1),
        max_rows=divided(limits.max_rows, most_rows),
        max_tokens=divided(limits.max_tokens, limits.max_body_bytes),
    )


class Ticket:
    """An admitted request; leaving the context releases it."""

    def __init__(self, pool: "Pool", key: int, rows: int, sent: int, tokens: int) -> None:
        """`sent` of its `tokens` are held as they were sent, until they are tokenized."""
        self._pool, self.key = pool, key
        self._size, self._tokens, self._sent = rows, tokens, sent
        self._open = rows
        self._held = True
        self.rows = self.tokens = 0

    def correct(self, tokens: int) -> None:
        """The request counts `tokens` from now on (its text has been tokenized)."""
        self._tokens, self._sent = tokens, 0
        self._count()

    def end_row(self) -> None:
        """The engine has ended a row: it counts no more."""
        self._open -= 1
        self._count()

    def release(self) -> None:
        """No longer count the request. Idempotent."""
        if self._held:
            self._held = False
            self._pool.move(self, -1, -self.rows, -self.tokens)

    def share(self) -> tuple[int, int]:
        """The rows and tokens that it should count."""
        limits = self._pool.limits
        tokens = self._tokens * self._open // self._size if self._size else 0
        most = max(self._sent, limits.max_tokens // _REQUESTS_AT_LEAST)
        return min(self._open, max(1, limits.max_rows // _REQUESTS_AT_LEAST)), min(tokens, most)

    def _count(self) -> None:
        if self._held:
            rows, tokens = self.share()
            self._pool.move(self, 0, rows - self.rows, tokens - self.tokens)
            self.rows, self.tokens = rows, tokens

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class _Counts:
    """Requests, rows and tokens (a text counts its bytes)."""

    def __init__(self) -> None:
        self.requests = self.rows = self.tokens = 0

    def move(self, requests: int, rows: int, tokens: int) -> None:
        self.requests += requests
        self.rows += rows
        self.tokens += tokens

    def fits(self, ticket: "Ticket", limits: Limits, part: float) -> bool:
        """The rows and tokens of one request more are within a part of the limits."""
        return (
            self.rows + ticket.rows <= limits.max_rows * part
            and self.tokens + ticket.tokens <= limits.max_tokens * part
        )


class Pool:
    """What is in flight of one model."""

    def __init__(self, limits: Limits, on_move: Callable[[int, int, int], None]) -> None:
        """`on_move` is called with how many requests, rows and tokens more are in flight."""
        self.limits = limits
        self._on_move = on_move
        self._all = _Counts()
        self._keys: defaultdict[int, _Counts] = defaultdict(_Counts)

    def admit(self, *, rows: int, tokens: int, sent: int | None = None, key: int = 0) -> Ticket:
        """Take a whole request in. `sent` of its tokens were sent, all if it is None; `key` is the
        number of its API key, 0 where there are no others.

        Raises APIError: `too_large` if it could never be admitted, `overloaded` if it cannot be
        admitted now.
        """
        limits = self.limits
        for unit, size, limit in (
            ("sequences", rows, limits.max_rows),
            ("tokens", tokens, limits.max_tokens),
        ):
            if size > limit:
                raise APIError(
                    "too_large", f"the request has {size} {unit}; this server takes at most {limit}"
                )
        ticket = Ticket(self, key, rows, tokens if sent is None else sent, tokens)
        ticket.rows, ticket.tokens = ticket.share()
        requests = self._all.requests
        if requests >= limits.max_requests or not self._all.fits(
            ticket, limits, self._part(ticket)
        ):
            raise APIError("overloaded", "the server is full; try again in a moment")
        if key and not self._fits_key(ticket):
            message = "this API key has as much in flight as one may have; try again in a moment"
            raise APIError("overloaded", message)
        self.move(ticket, 1, ticket.rows, ticket.tokens)
        return ticket

    def _fits_key(self, ticket: Ticket) -> bool:
        own = self._keys.get(ticket.key)
        if own is None:  # whatever its size, it would never fit better
            return True
        most = self.limits.max_requests * _OF_A_KEY
        return own.requests + 1 <= most and own.fits(ticket, self.limits, _OF_A_KEY)

    def _part(self, ticket: Ticket) -> float:
        """How much of the limits it may fill, with all others."""
        limits = self.limits
        large = ticket.rows * _SMALL > limits.max_rows or ticket.tokens * _SMALL > limits.max_tokens
        return 1 - 1 / _REQUESTS_AT_LEAST if large and self._all.requests else 1.0

    def move(self, ticket: Ticket, requests: int, rows: int, tokens: int) -> None:
        """Called by tickets: so much more, or less, is in flight."""
        self._all.move(requests, rows, tokens)
        if ticket.key:
            own = self._keys[ticket.key]
            own.move(requests, rows, tokens)
            if not own.requests:
                del self._keys[ticket.key]
        self._on_move(requests, rows, tokens)


class Admission:
    """The pools of all models, and what is in flight in them together."""

    def __init__(
        self, limits: Limits, models: Iterable[str], on_change: Callable[[int, int, int], None]
    ) -> None:
        """`on_change` is called with requests, rows and tokens whenever they change."""
        self._on_change = on_change
        self._all = _Counts()
        self._emptied: asyncio.Event | None = None
        self._pools = {model: Pool(limits, self._move) for model in models}

    def of(self, model: str) -> Pool:
        """The pool of a model, by its first name."""
        return self._pools[model]

    async def empty(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until nothing is in flight; whether that came about."""
        self._emptied = asyncio.Event()
        if self._all.requests == 0:
            return True
        try:
            await asyncio.wait_for(self._emptied.wait(), timeout)
        except TimeoutError:
            return False
        return True

    def _move(self, requests: int, rows: int, tokens: int) -> None:
        counts = self._all
        counts.move(requests, rows, tokens)
        self._on_change(counts.requests, counts.rows, counts.tokens)
        if counts.requests == 0 and self._emptied is not None:
            self._emptied.set()

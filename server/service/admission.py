"""Limits on what is in flight in one API process: whole requests are admitted, each is released
exactly once.

Each model has a pool of its own, which its requests and API keys share as they share the engine
(`engine_core/admission/shared_bound.py`). Rows are given back as the engine ends them, whether
their text is read or not.

Every 429 (code `overloaded`) comes from one of these:
- here: too many requests, rows or tokens in this API process (`--max-requests` and its like)
- `server/templates/render_queue.py`: too many conversations wait for one model's chat template
- `engine_core/admission/budget.py`: too many rows or tokens in the engine, from all API processes
- `engine_core/admission/queue_bound.py`: the expected wait in the engine's queue is too long;
  `engine_core/client/circuit_breaker.py` repeats that refusal without asking the engine
- `engine_core/structured/compiler_threads.py`: too many grammars are being compiled
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Self

import msgspec

from engine_core.admission.shared_bound import InFlight, SharedBound
from engine_core.refusal import RefusalError
from server.settings.server_config import Limits

_KEYS_AT_LEAST = 2
"""So many keys can have all requests of a pool."""


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
        self.rows, self.tokens = self._share()

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
            self._pool.move(self.key, -1, -self.rows, -self.tokens)

    def _share(self) -> tuple[int, int]:
        tokens = self._tokens * self._open // self._size if self._size else 0
        return self._pool.bound.share(self._open, tokens, self._sent)

    def _count(self) -> None:
        if self._held:
            rows, tokens = self._share()
            self._pool.move(self.key, 0, rows - self.rows, tokens - self.tokens)
            self.rows, self.tokens = rows, tokens

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Pool:
    """What is in flight of one model."""

    def __init__(self, limits: Limits, on_move: Callable[[int, int, int], None]) -> None:
        """`on_move` is called with how many requests, rows and tokens more are in flight."""
        self._limits, self._on_move = limits, on_move
        self.bound = SharedBound(limits.max_rows, limits.max_tokens)

    def admit(self, *, rows: int, tokens: int, sent: int | None = None, key: int = 0) -> Ticket:
        """Take a whole request in. `sent` of its tokens were sent, all if it is None; `key` is the
        number of its API key, 0 where there are no others.

        Raises RefusalError: `too_large` if it could never be admitted, `overloaded` if it cannot be
        admitted now.
        """
        for unit, size, limit in (
            ("sequences", rows, self._limits.max_rows),
            ("tokens", tokens, self._limits.max_tokens),
        ):
            if size > limit:
                raise RefusalError(
                    "too_large", f"the request has {size} {unit}; this server takes at most {limit}"
                )
        ticket = Ticket(self, key, rows, tokens if sent is None else sent, tokens)
        if not self._fits(ticket):
            raise RefusalError("overloaded", "the server is full; try again in a moment")
        if key and not self._fits_key(ticket):
            message = "this API key has as much in flight as one may have; try again in a moment"
            raise RefusalError("overloaded", message)
        self.move(key, 1, ticket.rows, ticket.tokens)
        return ticket

    def move(self, key: int, requests: int, rows: int, tokens: int) -> None:
        """Called by tickets: so much more, or less, is in flight."""
        self.bound.move(key, requests, rows, tokens)
        self._on_move(requests, rows, tokens)

    def _fits(self, ticket: Ticket) -> bool:
        has_room = self.bound.all.requests < self._limits.max_requests
        return has_room and self.bound.fits(ticket.rows, ticket.tokens)

    def _fits_key(self, ticket: Ticket) -> bool:
        requests = self.bound.requests_of(ticket.key)
        if requests and (requests + 1) * _KEYS_AT_LEAST > self._limits.max_requests:
            return False
        return self.bound.fits_key(ticket.key, ticket.rows, ticket.tokens)


class Admission:
    """The pools of all models, and what is in flight in them together."""

    def __init__(
        self, limits: Limits, models: Iterable[str], on_change: Callable[[int, int, int], None]
    ) -> None:
        """`on_change` is called with requests, rows and tokens whenever they change."""
        self._on_change = on_change
        self._all = InFlight()
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
        counts.requests += requests
        counts.rows += rows
        counts.tokens += tokens
        self._on_change(counts.requests, counts.rows, counts.tokens)
        if counts.requests == 0 and self._emptied is not None:
            self._emptied.set()

"""Limits on what is in flight in one API process: whole requests are admitted, each is released
exactly once.

Every 429 (code `overloaded`) comes from one of these:
- here: too many requests, rows or tokens in this API process (`--max-requests` and its like)
- `engine_core/admission/budget.py`: too many rows or tokens in the engine, from all API processes
- `engine_core/admission/queue_bound.py`: the expected wait in the engine's queue is too long;
  `engine_core/client/circuit_breaker.py` repeats that refusal without asking the engine
- `engine_core/structured/compiler_threads.py`: too many grammars are being compiled
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from server.errors import APIError
from server.settings.server_config import Limits


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

    def __init__(self, admission: "Admission", rows: int, tokens: int) -> None:
        self._admission = admission
        self.rows = rows
        self.tokens = tokens
        self._held = True

    def correct(self, tokens: int) -> None:
        """The request counts `tokens` from now on (its text has been tokenized)."""
        if self._held:
            self._admission.move(0, 0, tokens - self.tokens)
            self.tokens = tokens

    def release(self) -> None:
        """No longer count the request. Idempotent."""
        if self._held:
            self._held = False
            self._admission.move(-1, -self.rows, -self.tokens)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class Admission:
    """Counts what is in flight: requests, rows, tokens (a text counts its bytes)."""

    def __init__(self, limits: Limits, on_change: Callable[[int, int, int], None]) -> None:
        """`on_change` is called with requests, rows and tokens whenever they change."""
        self._limits = limits
        self._on_change = on_change
        self.requests = 0
        self.rows = 0
        self.tokens = 0
        self._emptied: asyncio.Event | None = None

    def admit(self, *, rows: int, tokens: int) -> Ticket:
        """Take a whole request in.

        Raises APIError: `too_large` if it could never be admitted, `overloaded` if it cannot be
        admitted now.
        """
        limits = self._limits
        for unit, size, limit in (
            ("sequences", rows, limits.max_rows),
            ("tokens", tokens, limits.max_tokens),
        ):
            if size > limit:
                raise APIError(
                    "too_large", f"the request has {size} {unit}; this server takes at most {limit}"
                )
        if (
            self.requests + 1 > limits.max_requests
            or self.rows + rows > limits.max_rows
            or self.tokens + tokens > limits.max_tokens
        ):
            raise APIError("overloaded", "the server is full; try again in a moment")
        self.move(1, rows, tokens)
        return Ticket(self, rows, tokens)

    def move(self, requests: int, rows: int, tokens: int) -> None:
        """Called by tickets: so much more, or less, is in flight."""
        self.requests += requests
        self.rows += rows
        self.tokens += tokens
        self._on_change(self.requests, self.rows, self.tokens)
        if self.requests == 0 and self._emptied is not None:
            self._emptied.set()

    async def empty(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until nothing is in flight; whether that came about."""
        self._emptied = asyncio.Event()
        if self.requests == 0:
            return True
        try:
            await asyncio.wait_for(self._emptied.wait(), timeout)
        except TimeoutError:
            return False
        return True

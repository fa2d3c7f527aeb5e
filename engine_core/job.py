"""A client's job inside the core, and the budgets that decide whether it may come in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine_core.messages import EncodeJob, FailureCode, GenerateJob

if TYPE_CHECKING:
    from engine_core.structured.grammar import CompiledGrammar

JobKey = tuple[bytes, int]


class RefusalError(Exception):
    """Why a job is not taken: becomes its `Failed` message."""

    def __init__(
        self,
        code: FailureCode,
        message: str,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code: FailureCode = code
        self.message = message
        self.param = param
        self.retry_after = retry_after


@dataclass(slots=True, eq=False)
class Job:
    """One admitted job of one client. `cost` is what it holds of the token budget; `grammar` what
    its rows must match, once that is compiled."""

    client: bytes
    message: GenerateJob | EncodeJob
    num_rows: int
    cost: int
    open_rows: int = field(init=False)
    ended: bool = False
    grammar: CompiledGrammar | None = None

    def __post_init__(self) -> None:
        self.open_rows = self.num_rows

    @property
    def key(self) -> JobKey:
        """Unique in the core: client ids are unique only within a client."""
        return (self.client, self.message.id)


class Budget:
    """Rows and tokens in the house. Text counts its bytes until it has been tokenized."""

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self._max_rows, self._max_tokens = max_rows, max_tokens
        self._rows = self._tokens = 0

    def admit(self, client: bytes, message: GenerateJob | EncodeJob) -> Job:
        """Take a whole job in. Raises RefusalError: too_large if it never fits, else overloaded."""
        rows, cost = _size(message)
        if rows < 1:
            raise RefusalError("invalid_request", "the request asks for nothing")
        if rows > self._max_rows or cost > self._max_tokens:
            raise RefusalError(
                "too_large",
                f"the request has {rows} rows and up to {cost} tokens; this server takes at most "
                f"{self._max_rows} rows and {self._max_tokens} tokens at once",
            )
        if self._rows + rows > self._max_rows or self._tokens + cost > self._max_tokens:
            raise RefusalError("overloaded", "the server is at capacity; try again later")
        self._rows += rows
        self._tokens += cost
        return Job(client, message, rows, cost)

    def correct(self, job: Job, tokens: int) -> None:
        """Replace the estimate of a job's tokens by their count."""
        self._tokens += tokens - job.cost
        job.cost = tokens

    def release(self, job: Job) -> None:
        """The job has ended."""
        self._rows -= job.num_rows
        self._tokens -= job.cost


def _size(message: GenerateJob | EncodeJob) -> tuple[int, int]:
    """(rows, tokens at most): a token has at least one byte, an id has four."""
    text_bytes = sum(len(text.encode()) for text in message.texts)
    tokens = text_bytes + sum(len(ids) // 4 for ids in message.ids)
    items = len(message.texts) + len(message.ids)
    if isinstance(message, GenerateJob):
        return items * message.n, tokens * message.n
    return items, tokens + _query_bytes(message.query, items)


def _query_bytes(query: str | list[str] | None, items: int) -> int:
    """One query is part of every pair."""
    if query is None:
        return 0
    if isinstance(query, str):
        return len(query.encode()) * items
    return sum(len(text.encode()) for text in query)
